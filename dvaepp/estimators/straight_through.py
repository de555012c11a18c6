"""Straight-through: differentiate z as if it were its mean μ (Bengio et al. 2013; Sec. 1.1).

    g = ∂ log p(x, z)/∂z μ (1-μ) + ∂H/∂l

The entropy H of q is not estimated but exact given z: ∂H/∂l = -l μ (1-μ), and the gradient also passes through the
logits of later layers. g is biased unless log p(x, z) is linear in z. The slope of log p is taken at the binary z, and
not at a relaxed value.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from dvaepp.estimators.base import Estimate, Estimator, Target
from dvaepp.estimators.draws import Layer, draw, log_q_from


class StraightThrough(Estimator):
    """The forward pass uses z, and the backward pass differentiates μ in its place.

    Choose it for the cheapest gradient, where a bias is acceptable.

    >>> StraightThrough([4], 5).unbiased
    False
    """

    unbiased = False
    needs_relaxed_target = True
    needs_directed_prior = True

    def estimate(self, target: Target, generator: torch.Generator | None) -> Estimate:
        self.check_target(target)
        layers = draw(target, generator, attach=_mean_slope)
        return with_entropy(target, layers)


def _mean_slope(logits: Tensor, z: Tensor, rho: Tensor) -> Tensor:
    mu = torch.sigmoid(logits)
    return z + (mu - mu.detach())


def with_entropy(target: Target, layers: Sequence[Layer]) -> Estimate:
    """log p(x, z) through the slopes attached to z, and the gradient of the entropy as -stop[l μ (1-μ)] · l."""
    log_joint = target.log_joint([layer.z for layer in layers])
    total = log_joint
    for layer in layers:
        slope = layer.logits.detach() * layer.mu * (1 - layer.mu)
        total = total - (slope * layer.logits).sum(-1)
    return Estimate(total, log_joint.detach() - log_q_from(layers)[0], None)
