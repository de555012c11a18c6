"""Spike-and-exponential (Rolfe 2016; Sec. 2): the baseline that does not overlap.

    r(ζ|0) = δ(ζ),   r(ζ|1) = β e^(βζ) / (e^β - 1) on [0, 1],
    ζ = 0 for ρ <= 1-μ, else log(u (e^β - 1) + 1) / β with u = (ρ + μ - 1) / μ.

Written 1 + log(d + u D) / β with d = e^(-β), D = 1 - d, it neither overflows nor loses ρ + μ - 1; for β < 1 the
printed form is the accurate one. The slope is zero on the spike; q(z|x, ζ) is the step z = 1[ζ > 0], so a KL needs
a boundary term by hand (`objectives.rolfe_kl`). The derivative in β, off the spike, is that of the implicit function
F₁(ζ, β) = u with F₁(ζ) = (e^(-β(1-ζ)) - d) / D.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from dvaepp.numerics import as_float64
from dvaepp.smoothing.base import Inverse, Smoothing, attach, implicit_sample
from dvaepp.types import Parameter


@dataclass(frozen=True)
class SpikeExponential(Smoothing):
    """Spike at 0 for z = 0, growing exponential for z = 1; β > 0 is a number or one value per unit.

    Choose it only to compare with Rolfe (2016), through `objectives.rolfe_kl`: it has no density on its spike.

    >>> SpikeExponential(beta=5.0).sample(torch.zeros(1), torch.tensor([0.2]))
    tensor([0.])
    """

    beta: Parameter = 5.0

    def __post_init__(self) -> None:
        self.positive("beta", remedy="the limit beta = infinity is Binary()")

    def _sample(self, logits: Tensor, rho: Tensor) -> Tensor:
        zeta = implicit_sample(self._invert, logits, rho)
        return self._with_parameters(zeta) if self.learns else zeta

    def _with_parameters(self, zeta: Tensor) -> Tensor:
        """Attach ∂ζ/∂β = -∂F₁/∂β / r(ζ|1), zero on the spike."""
        beta, point = as_float64(self.beta, zeta.device), zeta.detach().double()
        grown, complement = torch.exp(-beta * (1 - point)), -torch.expm1(-beta)
        level = (grown - torch.exp(-beta)) / complement
        with torch.no_grad():
            density = (beta * grown / complement).clamp_min(torch.finfo(torch.float64).tiny)
        return attach(level, zeta, torch.where(point > 0, -1 / density, 0.0))

    def _invert(self, logits: Tensor, rho: Tensor, with_slope: bool) -> Inverse:
        beta = as_float64(self.beta, logits.device).to(logits.dtype)
        d, complement = torch.exp(-beta), -torch.expm1(-beta)
        mu, one_minus_mu = torch.sigmoid(logits), torch.sigmoid(-logits)
        # ρ + μ - 1, from whichever complement is exact where it is small
        above = torch.where(logits < 0, mu - (1 - rho), rho - one_minus_mu)
        active = above > 0
        u = torch.where(active, above / mu, 0.0)
        inner = d + u * complement
        printed = torch.log1p(u * torch.expm1(beta.clamp_max(1.0))) / beta
        zeta = torch.where(beta < 1, printed, 1 + torch.log(inner) / beta).clamp(0, 1)
        zeta = torch.where(active, zeta, 0.0)
        if not with_slope:
            return Inverse(zeta, None)
        tiny = torch.finfo(logits.dtype).tiny
        slope = complement * one_minus_mu * (1 - u) / (beta * inner).clamp_min(tiny)
        return Inverse(zeta, torch.where(active, slope, 0.0))
