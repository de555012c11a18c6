"""Gumbel-Rao: straight-through Gumbel-Softmax, its slope averaged over the noise given z (Paulus et al. 2020).

    ∂z/∂l = E[σ'((l + ε) / λ) / λ | z],   by the mean over `num_draws` draws of ε given z
    l + ε = t log(1 + w (1 + e^(t l))) given z,   t = 2z - 1,   w = v / (1-v),   v uniform

The decoder reads the binary z, and runs once however many draws there are. More draws lower the variance of the slope
and leave its mean as it is; one draw is straight-through Gumbel-Softmax. Like straight-through the estimate is biased,
with an exact entropy.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from dvaepp.errors import UsageError
from dvaepp.estimators.base import Estimate, Estimator, Target
from dvaepp.estimators.draws import draw
from dvaepp.estimators.straight_through import with_entropy
from dvaepp.numerics import uniform


class GumbelRao(Estimator):
    """The forward pass uses z, and the backward pass the mean slope of Concrete relaxations of z.

    Choose it for straight-through slopes with less noise, where a bias is acceptable.

    >>> GumbelRao([4], 5, num_draws=10).unbiased
    False
    """

    unbiased = False
    needs_relaxed_target = True
    needs_directed_prior = True

    def __init__(
        self, layer_sizes: Sequence[int], context_size: int, *, temperature: float = 0.5, num_draws: int = 10
    ) -> None:
        super().__init__(layer_sizes, context_size)
        if not (temperature > 0 and num_draws >= 1):
            raise UsageError(f"temperature must be > 0 and num_draws >= 1, got {temperature:g} and {num_draws}")
        self.temperature, self.num_draws = temperature, num_draws

    def estimate(self, target: Target, generator: torch.Generator | None) -> Estimate:
        self.check_target(target)

        def attach(logits: Tensor, z: Tensor, rho: Tensor) -> Tensor:
            slope = self._slope(logits.detach(), z, generator)
            return z + slope * (logits - logits.detach())

        return with_entropy(target, draw(target, generator, attach=attach))

    def _slope(self, logits: Tensor, z: Tensor, generator: torch.Generator | None) -> Tensor:
        v = uniform(self.num_draws, *z.shape, generator=generator, dtype=z.dtype, device=z.device)
        odds = 1 + ((2 * z - 1) * logits).clamp_max(40).exp()  # beyond 40 the slope is 0, and e^l may overflow
        # The sign t is left out, because σ' is even.
        zeta = torch.sigmoid((v / (1 - v)).mul_(odds).log1p_().div_(self.temperature))
        return (zeta * (1 - zeta)).mean(0) / self.temperature
