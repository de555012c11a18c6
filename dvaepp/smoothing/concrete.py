"""Binary Concrete / Gumbel-Softmax (Maddison et al. 2016, Jang et al. 2016; Sec. 1.1, App. C): a baseline.

    ζ = sigmoid((logit + log ρ - log(1-ρ)) / λ),   F(ζ) = sigmoid(λ logit(ζ) - logit);   λ -> 0 is binary.

ζ is one continuous variable rather than a mixture r(ζ|z), so there is no ν = q(z|x, ζ) and no Boltzmann bound.
"""

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid

from dvaepp.numerics import log, working_dtype
from dvaepp.smoothing.base import Smoothing, broadcast_shape, check_values
from dvaepp.types import Parameter, Units


@dataclass(frozen=True)
class Concrete(Smoothing):
    """Binary Concrete with temperature λ > 0 (a number, or one value per unit; a tensor may require gradients).

    Choose it to compare with the Gumbel relaxation, or where samples need second derivatives.

    >>> Concrete(temperature=0.5).sample(torch.zeros(1), torch.tensor([0.5])).item()
    0.5
    """

    temperature: Parameter = 0.5

    def __post_init__(self) -> None:
        self.positive("temperature", remedy="the limit temperature = 0 is Binary()")

    def _sample(self, logits: Tensor, rho: Tensor) -> Tensor:
        # Plain autograd: it is stable here, and learned temperatures need second derivatives.
        dtype, rho = rho.dtype, rho.to(working_dtype(rho.dtype))
        half_ulp = torch.finfo(rho.dtype).eps / 2
        noise = torch.logit(rho.clamp(half_ulp, 1 - half_ulp))
        logits = logits.to(rho.dtype).clamp(-1e30, 1e30)  # as good as infinite, and 0 · ∞ would be NaN in the gradient
        return torch.sigmoid((logits + noise) / self.temperature).to(dtype)

    def log_prob(self, zeta: Units, logits: Units) -> Units:
        """log density of ζ on (0, 1); within half a spacing of its ends ζ is taken there."""
        broadcast_shape(zeta=zeta, logits=logits, **self.parameters())
        if self.validates:
            check_values("zeta", zeta, (zeta >= 0) & (zeta <= 1), "in [0, 1]")
            check_values("logits", logits, ~torch.isnan(logits), "anything but NaN")
        info = torch.finfo(zeta.dtype)
        zeta = zeta.clamp(info.tiny, 1 - info.eps / 2)
        t = self.temperature
        y = torch.log(zeta) - torch.log1p(-zeta)
        shifted = t * y - logits
        return log(t) - shifted + 2 * logsigmoid(shifted) - torch.log(zeta) - torch.log1p(-zeta)
