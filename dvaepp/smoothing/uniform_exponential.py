"""Exponential smoothing with a uniform floor on [0, 1] (from the later DVAE# line of work; not in the paper).

    r(ζ|0) = ε + (1-ε) e^(-βζ) / Z,   Z = (1 - e^(-β)) / β,   r(ζ|1) its mirror image;   β -> ∞, ε -> 0 is binary.

The floor ε bounds log r(ζ|1)/r(ζ|0), and with it the gradient of ν, however sharp the exponential. One component is
itself a mixture, and is drawn by its own components: from the floor where u < ε, else from the exponential. With the
letters of `Exponential`, m = e^(-βζ), n = e^(-β(1-ζ)), D = 1 - e^(-β), and the weight p of that component,

    ∂ζ/∂logit = p (1-p) (1-ε) (1-m) (1-n) / (ε D + (1-ε) β (p m + (1-p) n)).
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from dvaepp.numerics import as_float64, in_dtype, log
from dvaepp.smoothing.base import Moments, Overlapping
from dvaepp.smoothing.exponential import Exponential, constants
from dvaepp.types import Parameter


@dataclass(frozen=True)
class UniformExponential(Overlapping):
    """A share `mix` in (0, 1) of uniform in each exponential component; β > 0 (numbers, or one value per unit).

    Choose it where `Exponential` trains unsteadily at a large β: the uniform part bounds log r(ζ|1) / r(ζ|0).

    >>> one = torch.ones(1)
    >>> UniformExponential(beta=8.0, mix=0.05).log_ratio(one) < Exponential(8.0).log_ratio(one)
    tensor([True])
    """

    beta: Parameter = 8.0
    mix: Parameter = 0.05

    def __post_init__(self) -> None:
        self.positive("beta", remedy="the limit beta = infinity, mix = 0 is Binary()")
        self.require("mix", lambda m: (m > 0) & (m < 1), "in (0, 1)", "mix = 0 is Exponential(beta)")

    def log_density0(self, zeta: Tensor) -> Tensor:
        floor = as_float64(log(self.mix), zeta.device).to(zeta.dtype)
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

    def draw0(self, u: Tensor) -> Tensor:
        (beta, _, complement), mix = constants(self.beta, u.dtype), in_dtype(self.mix, u.dtype)
        level = (u - mix).div_(1 - mix)
        floor = torch.lt(level, 0, out=torch.empty_like(u))
        exponential = level.clamp_min_(0).mul_(-complement).log1p_().div_(-beta).clamp_(0, 1)
        return torch.lerp(exponential, u / mix, floor)

    def slope0(self, zeta: Tensor, u: Tensor, share: Tensor, rest: Tensor) -> Tensor:
        (beta, _, complement), mix = constants(self.beta, u.dtype), in_dtype(self.mix, u.dtype)
        m, n = torch.expm1(zeta * -beta), torch.expm1((1 - zeta).mul_(-beta))  # m - 1 and n - 1
        density = (share * m).addcmul_(rest, n).add_(1).mul_((1 - mix) * beta).add_(mix * complement)
        return rest.mul_(share).mul_(m.mul_(n)).mul_(1 - mix).div_(density)

    @property
    def _exponential(self) -> Exponential:
        return Exponential(self.beta, validate_args=False)
