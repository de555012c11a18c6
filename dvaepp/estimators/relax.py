"""RELAX: REBAR with a free-form control variate beside the relaxed model (Grathwohl et al. 2018).

    c_a(ζ) -> η c_a(ζ) + r_a(x, z_<a, ζ_a),   r a network of one hidden tanh layer on (x, z_<a, 2ζ_a - 1)

REBAR stays unbiased whatever function of ζ_a is added, so r learns, together with η and λ, whatever lowers the second
moment. It starts at zero, where RELAX is REBAR. Its hidden layer is tanh and not a rectifier, because the slope of r
enters g, and the slope of a rectifier network is piecewise constant.
"""

from collections.abc import Sequence
from typing import cast

import torch
from torch import Tensor, nn

from dvaepp.estimators.base import Target
from dvaepp.estimators.baseline import Mlp
from dvaepp.estimators.draws import Layer
from dvaepp.estimators.rebar import REBAR
from dvaepp.numerics import Evaluation


class RELAX(REBAR):
    """REBAR with a learned network added to its control variate.

    Choose it where REBAR's relaxation is a poor model of the bound: a network learns the rest.

    >>> RELAX([4], 5).unbiased
    True
    """

    def __init__(
        self,
        layer_sizes: Sequence[int],
        context_size: int,
        *,
        temperature: float = 0.5,
        hidden: int = 100,
        generator: torch.Generator | None = None,
    ) -> None:
        super().__init__(layer_sizes, context_size, temperature=temperature)
        through = [sum(layer_sizes[: a + 1]) for a in range(len(layer_sizes))]
        self.networks = nn.ModuleList(Mlp(context_size + n, hidden, generator) for n in through)

    def control(
        self, target: Target, layers: Sequence[Layer], split: Sequence[Tensor], c: Sequence[Evaluation]
    ) -> list[Evaluation]:
        seen = [target.context, *(layer.z for layer in layers)]
        total = []
        for a, (value, slope) in enumerate(super().control(target, layers, split, c)):
            features = torch.cat([*seen[: a + 1], 2 * split[a] - 1], -1)
            free = cast(Mlp, self.networks[a]).with_slope(features, split[a].shape[-1])
            total.append(Evaluation(value + free.value, slope + 2 * free.derivative))
        return total
