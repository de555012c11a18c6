"""DisARM: ARM with the noise of its augmentation integrated out (Dong, Mnih & Tucker 2020; also Yin et al. 2020).

    z = 1[ρ > 1-μ],   z̃ = 1[ρ < μ],   g = 1/2 (f(z) - f(z̃)) (z - z̃) max(μ, 1-μ)

is the mean of ARM's g given the pair (z, z̃): the same mean, never a larger variance. Units on which the pair agrees get
no gradient. Several layers as for ARM.
"""

import torch

from dvaepp.estimators.base import Estimate, Estimator, Target
from dvaepp.estimators.draws import antithetic_pairs, draw, log_q_from, surrogate


class DisARM(Estimator):
    """ARM, conditioned on its pair of samples.

    Choose it first among unbiased estimators without parameters: two evaluations of the model for each layer.

    >>> DisARM([4], 5).unbiased
    True
    """

    unbiased = True

    def estimate(self, target: Target, generator: torch.Generator | None) -> Estimate:
        self.check_target(target)
        layers = draw(target, generator)
        difference, partners, log_joint = antithetic_pairs(target, layers)
        with torch.no_grad():
            gradients = [
                (0.5 * d)[:, None] * (layer.z - partner) * torch.maximum(layer.mu, 1 - layer.mu)
                for d, layer, partner in zip(difference, layers, partners, strict=True)
            ]
            bound = log_joint[0] - log_q_from(layers)[0]
        return Estimate(surrogate(log_joint.mean(0), layers, gradients), bound, None)
