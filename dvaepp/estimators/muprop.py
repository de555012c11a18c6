"""MuProp: the score function with a Taylor control variate at the mean-field point (Gu et al. 2015; Sec. 1.1).

    h_a(z_a) = f_a(z̄) + ∂f_a(z̄) · (z_a - μ_a),   z̄_a = μ_a,   E[h_a(z_a) (z_a - μ_a)] = μ_a (1-μ_a) ∂f_a(z̄)
    g_a = (f_a(z) - h_a(z_a) - C_a(x, z_<a)) (z_a - μ_a) + μ_a (1-μ_a) ∂f_a(z̄)

The last term is the mean of what was subtracted, so that the estimate is unbiased (Sec. 1.1 of the paper says
otherwise). C is NVIL's baseline. Departure for several layers: the authors run one mean-field pass from x for all
layers. We run one for every layer a, from the z_<a that were drawn, with z̄_b = σ(l_b(z̄)) in later layers. h_a is then
an expansion about the mean of the distribution that z_a was drawn from. All passes are evaluated together.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from dvaepp.estimators.base import Estimate, Estimator, Target
from dvaepp.estimators.baseline import Baselines
from dvaepp.estimators.draws import Layer, branch, draw, log_q_from, surrogate


class MuProp(Estimator):
    """First-order Taylor control variate, its mean added back, and an input-dependent baseline.

    Choose it to compare with Table 1, or where log p(x, z) is nearly linear in z.

    >>> MuProp([4], 5).unbiased
    True
    """

    unbiased = True
    needs_relaxed_target = True
    needs_directed_prior = True

    def __init__(
        self,
        layer_sizes: Sequence[int],
        context_size: int,
        *,
        hidden: int = 100,  # as NVIL's
        generator: torch.Generator | None = None,
    ) -> None:
        super().__init__(layer_sizes, context_size)
        self.baselines = Baselines(layer_sizes, context_size, hidden, generator)

    def estimate(self, target: Target, generator: torch.Generator | None) -> Estimate:
        self.check_target(target)
        layers = draw(target, generator)
        log_joint = target.log_joint([layer.z for layer in layers])
        means = [layer.mu.clone().requires_grad_() for layer in layers]
        expanded = branch(target, layers, means, _mean_field)
        slopes = torch.autograd.grad(expanded.sum(), means)
        signal = log_joint.detach() - torch.stack(log_q_from(layers))
        scores = [layer.score for layer in layers]
        linear = torch.stack([(slope * score).sum(-1) for slope, score in zip(slopes, scores, strict=True)])
        residual = signal - expanded.detach() - linear - self.baselines(target.context, layers)
        gradients = [
            weight[:, None] * score + control_mean(layer, slope)
            for weight, score, layer, slope in zip(residual.detach(), scores, layers, slopes, strict=True)
        ]
        return Estimate(surrogate(log_joint, layers, gradients), signal[0], residual.square().sum(0).mean())


def control_mean(layer: Layer, slope: Tensor) -> Tensor:
    """E[h(z) (z - μ)] = μ (1-μ) ∂f(z̄)."""
    return layer.mu * (1 - layer.mu) * slope


def _mean_field(layer: int, logits: Tensor, rho: Tensor) -> Tensor:
    return torch.sigmoid(logits)
