"""Mixture of two normals on the real line: the first example of App. B.

    r(ζ|z) = N(ζ | z, s²);   s -> 0 is binary.

The paper leaves it because its CDF has no closed inverse. Inverting numerically and differentiating implicitly
needs none, and sampling by components inverts one normal only: with ζ = s x, x = Φ⁻¹(u) and the weight p of N(0, s²),

    ∂ζ/∂logit = s p (1-p) (u - Φ(x - 1/s)) / (p φ(x) + (1-p) φ(x - 1/s)).
"""

from dataclasses import dataclass
from math import pi, sqrt

import torch
from torch import Tensor
from torch.distributions import constraints

from dvaepp.numerics import in_dtype, log
from dvaepp.smoothing.base import Moments, Overlapping
from dvaepp.types import Parameter


@dataclass(frozen=True)
class Gaussian(Overlapping):
    """Normal r(ζ|z) with mean z and standard deviation `scale` > 0 (a number, or one value per unit).

    Choose it where a model wants normal noise around z, or for the exact relaxed prior of
    `objectives.gaussian_integral_log_prior`.

    >>> Gaussian(scale=0.2).log_density(torch.tensor([1.1]), z=1).shape
    torch.Size([1])
    """

    scale: Parameter = 0.2

    def __post_init__(self) -> None:
        self.positive("scale", remedy="the limit scale = 0 is Binary()")

    @property
    def support(self) -> constraints.Constraint:
        return constraints.real

    def log_density0(self, zeta: Tensor) -> Tensor:
        return -0.5 * (zeta / self.scale) ** 2 - log(self.scale) - 0.5 * log(2 * pi)

    def _log_ratio(self, zeta: Tensor) -> Tensor:
        return (zeta - 0.5) / self.scale**2

    def cdf0(self, zeta: Tensor) -> Tensor:
        return torch.special.ndtr(zeta / self.scale)

    def sf0(self, zeta: Tensor) -> Tensor:
        return torch.special.ndtr(-zeta / self.scale)

    def moments0(self) -> Moments:
        return Moments(0.0, self.scale**2)

    def draw0(self, u: Tensor) -> Tensor:
        # 2u - 1 is rounded to eps/2, which moves ζ where r(ζ|0) is below 1e-6 in float32; the ends stay finite.
        end = 1 - torch.finfo(u.dtype).eps
        return (2 * u).sub_(1).clamp_(-end, end).erfinv_().mul_(sqrt(2) * in_dtype(self.scale, u.dtype))

    def slope0(self, zeta: Tensor, u: Tensor, share: Tensor, rest: Tensor) -> Tensor:
        width = sqrt(2) * in_dtype(self.scale, u.dtype)
        x, y = zeta / width, (1 - zeta).div_(width)
        density = (y * y).neg_().exp_().mul_(rest).addcmul_(share, x.mul_(x).neg_().exp_())
        difference = torch.add(u, y.erfc_(), alpha=-0.5)
        slope = rest.mul_(share).mul_(difference).mul_(sqrt(pi) * width)
        return slope.div_(density.clamp_min_(torch.finfo(u.dtype).tiny))

    @property
    def lowest_coordinate(self) -> Parameter:
        return -9.0 * self.scale  # ndtr(-9) = 1e-19, below the smallest ρ of float64
