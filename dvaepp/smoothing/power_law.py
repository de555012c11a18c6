"""Two power laws on [0, 1] (from the later DVAE# line of work; not in the paper).

    r(ζ|0) = ζ^(1/β - 1) / β,   F₀(ζ) = ζ^(1/β),   r(ζ|1) its mirror image;   β -> ∞ is binary.

The density has an integrable pole at its own end. A float32 ζ cannot hold 1 - ζ below 6e-8, so the distance to the
upper pole is taken as at least half the spacing there: finite, with zero gradient, where it saturates. At the lower
pole ζ = u^β leaves the normal range of float32 for a few per cent of all u, and is 0 there.

One component is drawn as ζ = u^β. With g = (1-ζ)^(1/β) = 1 - F₁(ζ), and the weight p of that component in the mixture,

    ∂ζ/∂logit = β ζ (1-ζ) p (1-p) (u - (1-g)) / (p u (1-ζ) + (1-p) g ζ),

where multiplying both densities by β ζ (1-ζ) has taken the poles away.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from dvaepp.numerics import Evaluation, flushed, in_dtype, log
from dvaepp.smoothing.base import Moments, Overlapping
from dvaepp.types import Parameter


@dataclass(frozen=True)
class PowerLaw(Overlapping):
    """r(ζ|z) ∝ |ζ - z|^(1/β - 1); β > 1 is a number or one value per unit.

    Choose it for units that are mostly near 0 or 1 and still have gradients far from them: its tails are the heaviest.

    >>> PowerLaw(beta=40.0).sample(torch.zeros(3), torch.full((3,), 0.3)).shape
    torch.Size([3])
    """

    beta: Parameter = 30.0

    def __post_init__(self) -> None:
        self.require("beta", lambda b: (b > 1) & (b < torch.inf), "finite and > 1")

    def log_density0(self, zeta: Tensor) -> Tensor:
        return (1 / self.beta - 1) * torch.log(zeta.clamp_min(torch.finfo(zeta.dtype).tiny)) - log(self.beta)

    def _mirror_in_density(self, zeta: Tensor) -> Tensor:
        return (1 - zeta).clamp_min(torch.finfo(zeta.dtype).eps / 4)

    def _log_ratio(self, zeta: Tensor) -> Tensor:
        tiny = torch.finfo(zeta.dtype).tiny
        return (1 - 1 / self.beta) * (torch.log(zeta.clamp_min(tiny)) - torch.log(self._mirror_in_density(zeta)))

    def cdf0(self, zeta: Tensor) -> Tensor:
        return zeta ** (1 / self.beta)

    def sf0(self, zeta: Tensor) -> Tensor:
        # At ζ = 0 the value is 1 for every β; log(0) would make the derivative in β a NaN.
        positive = zeta > 0
        return torch.where(positive, -torch.expm1(torch.log(torch.where(positive, zeta, 1.0)) / self.beta), 1.0)

    def moments0(self) -> Moments:
        mean = 1 / (self.beta + 1)
        return Moments(mean, 1 / (2 * self.beta + 1) - mean**2)

    def draw0(self, u: Tensor) -> Tensor:
        return flushed(torch.exp(torch.log(u).mul_(in_dtype(self.beta, u.dtype))))

    def slope0(self, zeta: Tensor, u: Tensor, share: Tensor, rest: Tensor) -> Tensor:
        beta, above = in_dtype(self.beta, u.dtype), 1 - zeta
        g = torch.log(above).div_(beta).exp_()
        density = (share * u).mul_(above).addcmul_(rest * g, zeta)
        slope = rest.mul_(share).mul_(g.add_(u).sub_(1)).mul_(above.mul_(zeta)).mul_(beta)
        return flushed(slope.div_(density.clamp_min_(torch.finfo(u.dtype).tiny)))

    # F is infinitely steep in ζ at the pole; in x = F₀(ζ) it is nearly linear.

    def to_coordinate(self, zeta: Tensor) -> Tensor:
        return self.cdf0(zeta)

    def from_coordinate(self, x: Tensor) -> Evaluation:
        return Evaluation(x**self.beta, self.beta * x ** (self.beta - 1))
