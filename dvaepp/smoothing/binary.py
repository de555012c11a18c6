"""The limit β = ∞: z itself, drawn by the same noise. Evaluation runs in it; no gradient passes."""

from dataclasses import dataclass

import torch
from torch import Tensor

from dvaepp.smoothing.base import Smoothing


@dataclass(frozen=True)
class Binary(Smoothing):
    """z = 1[ρ > 1-μ] as 0. and 1.

    Choose it to evaluate in the binary limit; it passes no gradient to the logits.

    >>> Binary().sample(torch.zeros(2), torch.tensor([0.2, 0.7]))
    tensor([0., 1.])
    """

    def _sample(self, logits: Tensor, rho: Tensor) -> Tensor:
        with torch.no_grad():
            # ρ - (1-μ) from whichever complement is exact where it is small; ρ = 0 with a certain z = 1 gives 1
            rho = rho.clamp_min(torch.finfo(rho.dtype).tiny)
            above = torch.where(logits < 0, torch.sigmoid(logits) - (1 - rho), rho - torch.sigmoid(-logits))
            return (above > 0).to(rho.dtype)
