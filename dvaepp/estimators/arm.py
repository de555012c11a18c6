"""ARM: two antithetic samples per layer, no gradient of the model in z (Yin & Zhou 2019).

    z = 1[ρ > 1-μ],   z̃ = 1[ρ < μ],   g = (f(z) - f(z̃)) (ρ - 1/2)

The identity E[g] = ∂E[f]/∂l is proved by writing z in terms of two exponential variables and swapping them. With
several layers, both values of layer a are continued to the end with the same noise in later layers, and the pair of the
next layer starts from z. The gradient of p comes from the mean of log p(x, ·) over all rows, each a sample of q.
"""

import torch
from torch import Tensor

from dvaepp.estimators.base import Estimate, Estimator, Target
from dvaepp.estimators.draws import Layer, antithetic_pairs, draw, log_q_from, surrogate


class ARM(Estimator):
    """Augment-REINFORCE-merge: the difference between two antithetic samples weights the noise.

    Choose it for units of one layer where the decoder is not differentiable in z; `DisARM` is never noisier.

    >>> ARM([4], 5).unbiased
    True
    """

    unbiased = True

    def estimate(self, target: Target, generator: torch.Generator | None) -> Estimate:
        self.check_target(target)
        layers = draw(target, generator)
        differences, partners, log_joint = antithetic_pairs(target, layers)
        with torch.no_grad():
            pairs = zip(differences[..., None], layers, partners, strict=True)
            gradients = [self.gradient(*pair) for pair in pairs]
            bound = log_joint[0] - log_q_from(layers)[0]
        return Estimate(surrogate(log_joint.mean(0), layers, gradients), bound, None)

    def gradient(self, difference: Tensor, layer: Layer, partner: Tensor) -> Tensor:
        """g of a layer, from f(z) - f(z̃) (batch, 1), the layer of the draw and its antithetic partner z̃."""
        return difference * (layer.rho - 0.5)
