"""Concrete: train the relaxed model instead (Maddison et al. 2016, Jang et al. 2016; Table 1).

    y = (l + ε) / λ,   ε = logit(ρ),   ζ = σ(y),   bound: log p(x|ζ) + Σ_a log p(y_a|ζ_<a) - log q(y_a|x, ζ_<a)

Both densities are Concrete with the same λ, taken in logit space, where they are logistic and finite at any float:

    log q(y) = log λ + Λ(λ y - l) = log λ + Λ(ε),   log p(y) = log λ + Λ(λ y - m),   Λ(t) = -t - 2 log(1 + e^-t)

where m are the logits of the prior. The gradient is that of reparameterised samples. It is unbiased for this bound,
which is one of the relaxed model and also what `bound` holds. For the bound of the discrete model, which is evaluated
after training, it is biased.
"""

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn.functional import softplus

from dvaepp.errors import UsageError
from dvaepp.estimators.base import Estimate, Estimator, RelaxedTarget, Target
from dvaepp.numerics import uniform


class ConcreteEstimator(Estimator):
    """Relaxed posterior and prior at one temperature.

    Choose it for a baseline that trains the relaxed model; its bound is not that of binary units.

    >>> ConcreteEstimator([4], 5, temperature=0.5).unbiased
    False
    """

    unbiased = False
    needs_relaxed_target = True
    needs_directed_prior = True

    def __init__(self, layer_sizes: Sequence[int], context_size: int, *, temperature: float = 0.5) -> None:
        super().__init__(layer_sizes, context_size)
        if not temperature > 0:
            raise UsageError(f"temperature must be > 0, got {temperature:g}")
        self.temperature = temperature

    def estimate(self, target: Target, generator: torch.Generator | None) -> Estimate:
        self.check_target(target)
        if not isinstance(target, RelaxedTarget):
            raise UsageError("Concrete needs log_likelihood and prior_logits of its target: it relaxes the prior too")
        zeta: list[Tensor] = []
        drawn: list[tuple[Tensor, Tensor]] = []  # λ y and its noise ε
        for _ in range(target.num_layers):
            logits = target.logits(zeta)
            rho = uniform(*logits.shape, generator=generator, dtype=logits.dtype, device=logits.device)
            noise = torch.logit(rho)
            drawn.append((logits + noise, noise))
            zeta.append(torch.sigmoid(drawn[-1][0] / self.temperature))
        bound = target.log_likelihood(zeta)
        for (location, noise), prior in zip(drawn, target.prior_logits(zeta), strict=True):
            bound = bound + (_log_logistic(location - prior) - _log_logistic(noise)).sum(-1)
        return Estimate(bound, bound.detach(), None)


def _log_logistic(t: Tensor) -> Tensor:
    """log density of the logistic distribution; even in t."""
    return t - 2 * softplus(t, threshold=40.0)
