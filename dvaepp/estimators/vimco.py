"""VIMCO: the K-sample bound, each sample's baseline made from the others (Mnih & Rezende 2016).

    L = log (1/K) Σ_k e^(f(z_k)),   L_-k: the same with f(z_k) replaced by the mean of the other f
    g_k = (L - L_-k - w_k) (z_k - μ_k),   w_k = e^(f(z_k)) / Σ_j e^(f(z_j)),   p's share: Σ_k w_k log p(x, z_k)

The term -w_k is the derivative of L through -log q, whose mean is not zero for K > 1. All layers of a sample have the
same signal, because L does not split into local terms. The estimate is unbiased for the gradient of E[L], which is not
that of the ELBO; `bound` is L.
"""

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from dvaepp.errors import UsageError
from dvaepp.estimators.base import Estimate, Estimator, Target
from dvaepp.estimators.draws import draw, log_q_from, surrogate


class VIMCO(Estimator):
    """K samples with leave-one-out baselines.

    Choose it to train the K-sample bound with binary units.

    >>> VIMCO([4], 5, num_samples=5).unbiased
    True
    """

    unbiased = True

    def __init__(self, layer_sizes: Sequence[int], context_size: int, *, num_samples: int = 5) -> None:
        super().__init__(layer_sizes, context_size)
        if num_samples < 2:
            raise UsageError(f"VIMCO needs num_samples >= 2 to make a baseline of the others, got {num_samples}")
        self.num_samples = num_samples

    def estimate(self, target: Target, generator: torch.Generator | None) -> Estimate:
        self.check_target(target)
        layers = draw(target, generator, num_samples=self.num_samples)
        log_joint = target.log_joint([layer.z for layer in layers])
        with torch.no_grad():
            log_weights = log_joint - log_q_from(layers)[0]
            bound = torch.logsumexp(log_weights, 0) - math.log(self.num_samples)
            weights = torch.softmax(log_weights, 0)
            factor = (bound - self._leave_one_out(log_weights) - weights)[..., None]
            gradients = [factor * layer.score for layer in layers]
        return Estimate(surrogate((weights * log_joint).sum(0), layers, gradients), bound, None)

    def _leave_one_out(self, log_weights: Tensor) -> Tensor:
        """L_-k, (samples, batch), from the K x K table with the mean of the others on the diagonal."""
        k = self.num_samples
        others = (log_weights.sum(0) - log_weights) / (k - 1)
        eye = torch.eye(k, dtype=log_weights.dtype, device=log_weights.device)[..., None]
        table = log_weights + eye * (others - log_weights)
        return torch.logsumexp(table, 1) - math.log(k)
