"""Exponential smoothing with a uniform floor on [0, 1] (from the later DVAE# line of work; not in the paper).

    r(ζ|0) = ε + (1-ε) e^(-βζ) / Z,   Z = (1 - e^(-β)) / β,   r(ζ|1) its mirror image;   β -> ∞, ε -> 0 is binary.

The floor ε bounds log r(ζ|1)/r(ζ|0), and with it the gradient of ν, however sharp the exponential.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from dvaepp.numerics import log
from dvaepp.smoothing.base import Moments, Overlapping
from dvaepp.smoothing.exponential import Exponential
from dvaepp.types import Parameter


@dataclass(frozen=True)
class UniformExponential(Overlapping):
    """A share `mix` in (0, 1) of uniform in each exponential component; β > 0 (numbers, or one value per unit)."""

    beta: Parameter = 8.0
    mix: Parameter = 0.05

    def __post_init__(self) -> None:
        self.positive("beta", remedy="the limit beta = infinity, mix = 0 is Binary()")
        self.require("mix", lambda m: (m > 0) & (m < 1), "in (0, 1)", "mix = 0 is Exponential(beta)")

    def log_density0(self, zeta: Tensor) -> Tensor:
        floor = torch.as_tensor(log(self.mix), dtype=zeta.dtype, device=zeta.device)
        return torch.logaddexp(floor, log(1 - self.mix) + self._exponential.log_density0(zeta))

    def cdf0(self, zeta: Tensor) -> Tensor:
        return self.mix * zeta + (1 - self.mix) * self._exponential.cdf0(zeta)

    def sf0(self, zeta: Tensor) -> Tensor:
        return self.mix * (1 - zeta) + (1 - self.mix) * self._exponential.sf0(zeta)

    def moments0(self) -> Moments:
        part = self._exponential.moments0()
        mean = self.mix * 0.5 + (1 - self.mix) * part.mean
        square = self.mix / 3 + (1 - self.mix) * (part.variance + part.mean**2)
        return Moments(mean, square - mean**2)

    @property
    def _exponential(self) -> Exponential:
        return Exponential(self.beta, validate_args=False)
