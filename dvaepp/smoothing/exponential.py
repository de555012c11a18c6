"""Mixture of two exponentials on [0, 1] (Sec. 3, Eq. 3, App. A).

    r(ζ|0) = e^(-βζ) / Z,   r(ζ|1) = e^(β(ζ-1)) / Z,   Z = (1 - e^(-β)) / β;   β -> ∞ gives the binary unit.

With d = e^(-β), D = 1 - d, m = e^(-βζ) and n = e^(-β(1-ζ)) = d/m, App. A divides F(ζ) = ρ by 1 - μ and prints

    m² + b m + c = 0,   b = [ρ + d(μ - ρ)] / (1-μ) - 1,   c = -μ d / (1-μ),   ζ = -log(m) / β.

Typed so, 16 % of ordinary float32 inputs fail at β = 8. We multiply by 1 - μ again and write

    B = (ρ - (1-μ)) D + d (2μ - 1),   S = √(B² + 4 μ (1-μ) d),
    m = (S - B) / (2 (1-μ)),   n = (S + B) / (2μ),

and use the root that adds: ζ = log(2 (1-μ) / (S - B)) / β for B <= 0, 1 - ζ = log(2μ / (S + B)) / β for B > 0.
The derivative of the implicit function F(ζ, μ) = ρ becomes

    ∂ζ/∂logit = μ (1-μ) (1-m) (1-n) / (β S),   1-m = 2ρD / (C + S),   1-n = 2(1-ρ)D / (C' + S),
    C = (1-μ) + μd + ρD,   C' = μ + (1-μ)d + (1-ρ)D,

all terms positive. For β < 1 the logarithms are of numbers near one, and ζ = -log(1 - (1-m)) / β is used instead.

One component alone has m = 1 - uD for F₀(ζ) = u, so that 1-n = (1-u)D/m; where it has the weight p in the mixture,

    ∂ζ/∂logit = p (1-p) (1-m) (1-n) / (β (p m + (1-p) n)) = p (1-p) u (1-u) D² / (β (p m² + (1-p) d)).

Entropies and KL divergences are exact here. With v = e^(-βζ), which is uniform on [d, 1] under r(ζ|0), the mixture is
q(ζ) = β/D [(1-μ) v + μ d/v], and the integral of log(α v² + c) has a closed form; with s = √(μ d / (1-μ)),

    E log q(ζ) over r(ζ|0) = log(β/D) - 1 + [log(1-μ + μd) - d log((1-μ)d + μ) + 2 s arctan(sD / (s² + d))] / D.
"""

from dataclasses import dataclass
from math import exp, expm1, inf

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid

from dvaepp.numerics import as_float64, log
from dvaepp.smoothing.base import Inverse, Moments, Overlapping
from dvaepp.smoothing.quadratic import Folded, add_scaled_, fold, positive, same
from dvaepp.types import Parameter

GENTLE = 1.0  # below: ζ from 1 - m
CERTAIN = 300.0  # logits beyond it change no expectation, and its exponential is finite in float64
SHARP = 40.0  # above: 4 μ (1-μ) d may underflow in float32


@dataclass(frozen=True)
class Exponential(Overlapping):
    """r(ζ|z) ∝ exp(-β |ζ - z|) on [0, 1]; β > 0 is a number or one value per unit.

    Choose it first: it is the paper's, has a closed inverse, and its entropy and KL are exact. Larger β is nearer to
    binary units and has noisier gradients; 5 to 10 trains well.

    >>> zeta = Exponential(beta=8.0).sample(logits=torch.zeros(2, 3), rho=torch.full((2, 3), 0.3))
    >>> zeta.shape
    torch.Size([2, 3])
    """

    beta: Parameter = 8.0  # App. G

    def __post_init__(self) -> None:
        self.positive("beta", remedy="the limit beta = infinity is Binary()")

    def log_density0(self, zeta: Tensor) -> Tensor:
        beta, _, complement = constants(self.beta, zeta.dtype)
        return -beta * zeta - log(complement / beta)

    def _log_ratio(self, zeta: Tensor) -> Tensor:
        return self.beta * (2 * zeta - 1)

    def cdf0(self, zeta: Tensor) -> Tensor:
        beta, _, complement = constants(self.beta, zeta.dtype)
        return -torch.expm1(-beta * zeta) / complement

    def sf0(self, zeta: Tensor) -> Tensor:
        beta, _, complement = constants(self.beta, zeta.dtype)
        return -torch.exp(-beta * zeta) * torch.expm1(-beta * (1 - zeta)) / complement

    def moments0(self) -> Moments:
        """1/β - 1/(e^β - 1) and 1/β² - e^β/(e^β - 1)²; as series where these cancel."""
        beta = as_float64(self.beta)
        mean = 1 / beta - 1 / torch.expm1(beta)
        variance = 1 / beta**2 + 1 / (torch.expm1(beta) * torch.expm1(-beta))
        small = beta < 0.05
        mean = torch.where(small, 0.5 - beta / 12 + beta**3 / 720, mean)
        variance = torch.where(small, 1 / 12 - beta**2 / 240 + beta**4 / 6048, variance)
        return Moments(mean, variance)

    def expected_log_prob0(self, logits: Tensor) -> Tensor:
        beta, logit = as_float64(self.beta, logits.device), logits.double().clamp(-CERTAIN, CERTAIN)
        d, complement = torch.exp(-beta), -torch.expm1(-beta)
        zero, one = logsigmoid(-logit), logsigmoid(logit)
        s = torch.exp((logit - beta) / 2)
        angle = 2 * s * torch.atan2(s * complement, s**2 + d)
        logs = torch.logaddexp(zero, one - beta) - d * torch.logaddexp(zero - beta, one)
        return torch.log(beta / complement) - 1 + (logs + angle) / complement

    def _invert(self, logits: Tensor, rho: Tensor, with_slope: bool) -> Inverse:
        """The closed form above, in the frame where μ <= 1/2 (see `fold`)."""
        beta, d, complement = constants(self.beta, logits.dtype)
        f = fold(logits, rho)
        one_minus_mu = 1 - f.mu
        product = f.mu * one_minus_mu
        half_b = add_scaled_((f.mu - f.one_minus_rho).mul_(complement / 2), d, f.mu).sub_(d / 2)
        half_s = (product * d).addcmul_(half_b, half_b).sqrt_()
        slope = gentle = None
        lowest, highest = self._range
        if with_slope or lowest < GENTLE:
            # C' + S of the module docstring; C + C' = 2 gives the other without loss, because C >= 1/2
            low = add_scaled_((one_minus_mu * d).add_(f.mu), complement, f.one_minus_rho).add_(half_s, alpha=2)
            high = (4 * half_s).sub_(low).add_(2)
        if with_slope:
            low.mul_(high).mul_(half_s.clamp_min(torch.finfo(rho.dtype).tiny))  # saturates beyond the range
            slope = product.mul_((1 - rho).mul_(rho)).mul_(2 * complement**2 / beta).div_(low)
        if lowest < GENTLE:
            gentle = _gentle(f, rho, high, beta, complement)
            if highest < GENTLE:
                return Inverse(gentle, slope)
        above = positive(half_b)
        t = torch.lerp(one_minus_mu, f.mu, above).div_(half_b.abs_().add_(half_s)).log_().div_(beta)
        if highest > SHARP:  # S >= 2 √(μ(1-μ)d), though its square may have vanished
            t = torch.minimum(t, 0.5 + (0.5 - above) * (logits.abs() / beta))
        zeta = same(above, f.upright).sub_(t.clamp_(0, 1)).abs_()
        if gentle is not None and isinstance(beta, Tensor):
            zeta = torch.where(beta < GENTLE, gentle, zeta)
        return Inverse(zeta, slope)

    def draw0(self, u: Tensor) -> Tensor:
        beta, _, complement = constants(self.beta, u.dtype)
        return torch.log1p(u * -complement).div_(-beta).clamp_(0, 1)

    def slope0(self, zeta: Tensor, u: Tensor, share: Tensor, rest: Tensor) -> Tensor:
        beta, d, complement = constants(self.beta, u.dtype)
        m = 1 - u * complement
        density = add_scaled_(m.mul_(m).mul_(share), d, rest).clamp_min_(torch.finfo(u.dtype).tiny)
        return rest.mul_(share).mul_((1 - u).mul_(u)).mul_(complement**2 / beta).div_(density)

    @property
    def _range(self) -> tuple[float, float]:
        """The least and the greatest β that may occur.

        Those of a tensor are not asked for: it may be learned, and so change from call to call, and on an accelerator
        the answer would cost a wait. All forms are then computed, and each unit takes its own.
        """
        return (0.0, inf) if isinstance(self.beta, Tensor) else (self.beta, self.beta)


def constants(beta: Parameter, dtype: torch.dtype) -> tuple[Parameter, Parameter, Parameter]:
    """β, d = e^(-β) and D = 1 - d."""
    if isinstance(beta, Tensor):
        beta = beta.to(dtype)
        return beta, torch.exp(-beta), -torch.expm1(-beta)
    return beta, exp(-beta), -expm1(-beta)


def _gentle(f: Folded, rho: Tensor, c_plus_s: Tensor, beta: Parameter, complement: Parameter) -> Tensor:
    """ζ = -log(1 - (1-m)) / β, for small β."""
    mirrored = 1 - f.upright
    one_minus_m = (rho - mirrored).abs_().mul_(2 * complement).div_(c_plus_s)
    t = torch.log1p(one_minus_m.neg_()).div_(-beta).clamp_(0, 1)
    return mirrored.sub_(t).abs_()
