"""ARM: two antithetic samples per layer, no gradient of the model in z (Yin & Zhou 2019).

    z = 1[ρ > 1-μ],   z̃ = 1[ρ < μ],   g = (f(z) - f(z̃)) (ρ - 1/2)

The identity E[g] = ∂E[f]/∂l follows from the augmentation by exponential variables and a swap. Several layers: both
values of layer a continue to the end, later layers with common noise; the next layer's pair starts from z. p's share
averages log p(x, ·) over all rows, each of which is a sample of q.
"""

import torch

from dvaepp.estimators.base import Estimate, Estimator, Target
from dvaepp.estimators.draws import antithetic_pairs, draw, log_q_from, surrogate


class ARM(Estimator):
    """Augment, reinforce, merge.

    Choose it for units of one layer where the decoder is not differentiable in z; `DisARM` is never noisier.

    >>> ARM([4], 5).unbiased
    True
    """

    unbiased = True

    def estimate(self, target: Target, generator: torch.Generator | None) -> Estimate:
        self.check_target(target)
        layers = draw(target, generator)
        difference, _, log_joint = antithetic_pairs(target, layers)
        with torch.no_grad():
            gradients = [d[:, None] * (layer.rho - 0.5) for d, layer in zip(difference, layers, strict=True)]
            bound = log_joint[0] - log_q_from(layers)[0]
        return Estimate(surrogate(log_joint.mean(0), layers, gradients), bound, None)
