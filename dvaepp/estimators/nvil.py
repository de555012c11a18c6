"""NVIL: the score function with learned baselines (Mnih & Gregor 2014; Sec. 1.1, Table 1).

    g_a = (f_a(z) - C_a(x, z_<a) - c_a) (z_a - μ_a) / s_a,   f_a(z) = log p(x, z) - Σ_{b>=a} log q(z_b|x, z_<b)

C is a network that is fitted to the signal by least squares. c and v are running averages of the mean and the variance
of what C leaves. s_a is 1 or, with `normalize`, max(1, √v_a). The authors update c and v with the batch before they
apply them to it, which correlates them with z. Here c and v come from earlier batches, so that the estimate is exactly
unbiased. Dividing by s changes the size of q's gradient beside that of p, and their sum is then no longer the gradient
of the bound; this is why `normalize` is off by default. The first batch sets c and v at once, because from 0 they would
be wrong by hundreds of nats for 30 steps.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from dvaepp.errors import UsageError
from dvaepp.estimators.base import Estimate, Estimator, Target
from dvaepp.estimators.baseline import Baselines
from dvaepp.estimators.draws import draw, log_q_from, surrogate


class NVIL(Estimator):
    """The score function with an input-dependent baseline and a running mean per layer.

    Choose it where the decoder is not differentiable in z, and one evaluation a step is all there is.

    >>> NVIL([4], 5).unbiased
    True
    """

    unbiased = True
    running_mean: Tensor
    running_variance: Tensor
    is_fresh: Tensor

    def __init__(
        self,
        layer_sizes: Sequence[int],
        context_size: int,
        *,
        hidden: int = 100,  # Mnih & Gregor, as in the REBAR code
        decay: float = 0.8,  # Mnih & Gregor
        normalize: bool = False,
        generator: torch.Generator | None = None,
    ) -> None:
        super().__init__(layer_sizes, context_size)
        if not 0 <= decay < 1:
            raise UsageError(f"decay must be in [0, 1), got {decay:g}")
        self.baselines = Baselines(layer_sizes, context_size, hidden, generator)
        self.decay, self.normalize = decay, normalize
        for name in ("running_mean", "running_variance"):
            self.register_buffer(name, torch.zeros(len(layer_sizes), dtype=torch.float32))
        self.register_buffer("is_fresh", torch.ones((), dtype=torch.float32))

    def estimate(self, target: Target, generator: torch.Generator | None) -> Estimate:
        self.check_target(target)
        layers = draw(target, generator)
        log_joint = target.log_joint([layer.z for layer in layers])
        signal = log_joint.detach() - torch.stack(log_q_from(layers))
        residual = signal - self.running_mean[:, None] - self.baselines(target.context, layers)
        weight = residual.detach()
        if self.normalize:
            weight = weight / self.running_variance.sqrt().clamp_min(1)[:, None]
        gradients = [w[:, None] * layer.score for w, layer in zip(weight, layers, strict=True)]
        if self.training:
            self._follow(residual.detach() + self.running_mean[:, None])
        return Estimate(surrogate(log_joint, layers, gradients), signal[0], residual.square().sum(0).mean())

    @torch.no_grad()
    def _follow(self, signal: Tensor) -> None:
        """Move c and v towards the mean and variance of the signal that the network leaves."""
        step = torch.maximum(self.is_fresh, torch.full_like(self.is_fresh, 1 - self.decay))
        self.running_variance.lerp_(signal.var(1, correction=0), step)
        self.running_mean.lerp_(signal.mean(1), step)
        self.is_fresh.zero_()
