"""Mixture of two logistics on the real line (App. B).

    r(ζ|z) = L(ζ | loc_z, s),   L(ζ | loc, s) = e^(-(ζ-loc)/s) / (s (1 + e^(-(ζ-loc)/s))²);   s -> 0 is binary.

App. B solves F(ζ) = ρ as a quadratic in e^(-ζ/s). With e = e^(-(loc1-loc0)/s) and m = e^(-(ζ-loc0)/s) it reads

    ρ m² + b m - (1-ρ) e = 0,   b = (ρ - (1-μ)) + e (ρ - μ),   S = √(b² + 4 ρ (1-ρ) e),

and again the root that adds is used, measured from the nearer location so that ζ keeps its digits when s is tiny:

    ζ = loc0 + s log(2ρ / (S - b)) for b <= 0,   ζ = loc1 - s log(2(1-ρ) / (S + b)) for b > 0,
    ∂ζ/∂logit = s (1-e) μ (1-μ) / S.

The change of variable the paper offers against overflow, m' = √(d₀d₁) m, measures ζ from the centre instead; that
suffices in float32 down to s of about 0.01.

One component alone is ζ = loc0 + s logit(u). There F₁(ζ) = u e / k with k = 1 - u + u e, and with the weight p of that
component in the mixture both densities share the factor u (1-u) / s:

    ∂ζ/∂logit = s (1-e) p (1-p) k / (p k² + (1-p) e).
"""

from dataclasses import dataclass
from math import exp, expm1, pi

import torch
from torch import Tensor
from torch.distributions import constraints
from torch.nn.functional import logsigmoid

from dvaepp.numerics import in_dtype, log
from dvaepp.smoothing.base import Inverse, Moments, Overlapping
from dvaepp.smoothing.quadratic import add_scaled_, fold, positive, same
from dvaepp.types import Parameter

SHARP = 40.0  # (loc1 - loc0) / s above which 4 ρ (1-ρ) e may underflow in float32


@dataclass(frozen=True)
class Logistic(Overlapping):
    """Logistic r(ζ|z) with means loc0 < loc1 and a common scale s > 0 (numbers, or one value per unit).

    Choose it for units on the real line that still have a closed inverse; App. B compares it with the exponential.

    >>> Logistic(scale=0.1).sample(torch.zeros(3), torch.full((3,), 0.3)).shape
    torch.Size([3])
    """

    scale: Parameter = 0.1
    loc0: Parameter = 0.0
    loc1: Parameter = 1.0

    def __post_init__(self) -> None:
        self.positive("scale", remedy="the limit scale = 0 is Binary()")
        self.require("loc0", torch.isfinite, "finite")
        self.require("loc1", lambda loc1: torch.isfinite(loc1) & (loc1 > self.loc0), "finite and > loc0")

    @property
    def support(self) -> constraints.Constraint:
        return constraints.real

    @property
    def center(self) -> Parameter:
        return (self.loc0 + self.loc1) / 2

    def log_density0(self, zeta: Tensor) -> Tensor:
        a = (zeta - self.loc0) / self.scale
        return -a + 2 * logsigmoid(a) - log(self.scale)

    def cdf0(self, zeta: Tensor) -> Tensor:
        return torch.sigmoid((zeta - self.loc0) / self.scale)

    def sf0(self, zeta: Tensor) -> Tensor:
        return torch.sigmoid((self.loc0 - zeta) / self.scale)

    def moments0(self) -> Moments:
        return Moments(self.loc0, (pi * self.scale) ** 2 / 3)

    def _invert(self, logits: Tensor, rho: Tensor, with_slope: bool) -> Inverse:
        """The closed form above, in the frame where μ <= 1/2 (see `fold`)."""
        scale, loc0, loc1, e, complement = self._constants(logits.dtype)
        half_ulp = torch.finfo(rho.dtype).eps / 2
        rho = rho.clamp(half_ulp, 1 - half_ulp)  # the ends of the line stay finite
        f = fold(logits, rho)
        folded_rho = (rho - (1 - f.upright)).abs_()
        one_minus_mu = 1 - f.mu
        b = add_scaled_(f.mu - f.one_minus_rho, e, one_minus_mu - f.one_minus_rho)
        s = (folded_rho * f.one_minus_rho).mul_(4 * e).addcmul_(b, b).sqrt_()
        above = positive(b)
        w = torch.lerp(folded_rho, f.one_minus_rho, above)
        t = (2 * w).div_(b.abs_().add_(s)).log_()
        if self._may_be_sharp:  # S >= 2 √(ρ(1-ρ)e), though its square may have vanished
            odds = torch.log(w / torch.lerp(f.one_minus_rho, folded_rho, above))
            t = torch.minimum(t, (odds + (loc1 - loc0) / scale) / 2)
        upper = same(above, f.upright)
        zeta = (upper * (loc1 - loc0)).add_(loc0).addcmul_(1 - 2 * upper, t.mul_(scale))
        if not with_slope:
            return Inverse(zeta, None)
        s.clamp_min_(torch.finfo(s.dtype).tiny)  # saturates where the slope leaves the range
        return Inverse(zeta, one_minus_mu.mul_(f.mu).mul_(scale * complement).div_(s))

    def draw0(self, u: Tensor) -> Tensor:
        scale, loc0, *_ = self._constants(u.dtype)
        end = torch.finfo(u.dtype).eps / 2  # the ends of the line stay finite
        return torch.logit(u, end).mul_(scale).add_(loc0)

    def slope0(self, zeta: Tensor, u: Tensor, share: Tensor, rest: Tensor) -> Tensor:
        scale, _, _, e, complement = self._constants(u.dtype)
        k = 1 - u * complement
        density = add_scaled_((k * k).mul_(share), e, rest).clamp_min_(torch.finfo(u.dtype).tiny)
        return rest.mul_(share).mul_(k).mul_(scale * complement).div_(density)

    def _constants(self, dtype: torch.dtype) -> tuple[Parameter, Parameter, Parameter, Parameter, Parameter]:
        """s, loc0, loc1, e and 1 - e."""
        scale, loc0, loc1 = (in_dtype(p, dtype) for p in (self.scale, self.loc0, self.loc1))
        gap = (loc1 - loc0) / scale
        if isinstance(gap, Tensor):
            return scale, loc0, loc1, torch.exp(-gap), -torch.expm1(-gap)
        return scale, loc0, loc1, exp(-gap), -expm1(-gap)

    @property
    def _may_be_sharp(self) -> bool:
        """Whether the square under S may vanish; always asked for where a parameter is a tensor, which may change."""
        gap = (self.loc1 - self.loc0) / self.scale
        return isinstance(gap, Tensor) or gap > SHARP
