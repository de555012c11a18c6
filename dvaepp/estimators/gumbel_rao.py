"""Gumbel-Rao: straight-through Gumbel-Softmax, its slope averaged over the noise given z (Paulus et al. 2020).

    z in value, ∂z/∂l = E[σ'((l + ε) / λ) / λ | z]   by `num_draws` draws of ε given z

Given z, with t = 2z - 1 and v uniform, l + ε = t log(1 + w (1 + e^(t l))), w = v / (1-v): the decoder runs once,
and the slope's variance falls while its mean stays; one draw is straight-through Gumbel-Softmax. Biased as
straight-through is; the entropy is exact, as there.
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
    """z forward, the mean slope of its Concrete relaxations backward.

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
        odds = 1 + ((2 * z - 1) * logits).clamp_max(40).exp()  # beyond, the slope is 0 and e^l would overflow
        # σ' is even: the sign t does not matter
        zeta = torch.sigmoid((v / (1 - v)).mul_(odds).log1p_().div_(self.temperature))
        return (zeta * (1 - zeta)).mean(0) / self.temperature
