"""DisARM: ARM with the noise of its augmentation integrated out (Dong, Mnih & Tucker 2020; also Yin et al. 2020).

    z = 1[ρ > 1-μ],   z̃ = 1[ρ < μ],   g = 1/2 (f(z) - f(z̃)) (z - z̃) max(μ, 1-μ)

This is the mean of ARM's g given the pair (z, z̃), so that the overall mean is the same and the variance never larger.
Units on which the pair agrees get no gradient. Several layers are treated as in ARM.
"""

import torch
from torch import Tensor

from dvaepp.estimators.arm import ARM
from dvaepp.estimators.draws import Layer


class DisARM(ARM):
    """ARM with its gradient averaged over the noise that leads to the same pair of samples.

    Choose it first among unbiased estimators without parameters: two evaluations of the model for each layer.

    >>> DisARM([4], 5).unbiased
    True
    """

    def gradient(self, difference: Tensor, layer: Layer, partner: Tensor) -> Tensor:
        return 0.5 * difference * (layer.z - partner) * torch.maximum(layer.mu, 1 - layer.mu)
