"""Mixture of two normals on the real line: the first example of App. B.

    r(ζ|z) = N(ζ | z, s²);   s -> 0 is binary.

The paper leaves it because its CDF has no closed inverse. Inverting numerically and differentiating implicitly
needs none.
"""

from dataclasses import dataclass
from math import pi

import torch
from torch import Tensor
from torch.distributions import constraints

from dvaepp.numerics import log
from dvaepp.smoothing.base import Moments, Overlapping
from dvaepp.types import Parameter


@dataclass(frozen=True)
class Gaussian(Overlapping):
    """Normal r(ζ|z) with mean z and standard deviation `scale` > 0 (a number, or one value per unit)."""

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

    @property
    def lowest_coordinate(self) -> Parameter:
        return -9.0 * self.scale  # ndtr(-9) = 1e-19, below the smallest ρ of float64
