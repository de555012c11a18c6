"""Squeeze and excitation (App. G): channels weighted by s = σ(W₂ ELU(W₁ mean(f) + b₁) + b₂), reduction ratio 4."""

import math

import torch
from torch import Tensor, nn
from torch.nn.functional import elu

from dvaepp.networks.dense import cut_normal_

RATIO = 4


class Excitation(nn.Module):
    """Multiplies each channel by a weight in (0, 1), which a small network computes from the means of all channels.

    Choose it at the end of a residual branch; `Residual` has one.

    >>> Excitation(8)(torch.ones(2, 8, 4, 4)).shape
    torch.Size([2, 8, 4, 4])
    """

    def __init__(self, channels: int, generator: torch.Generator | None = None) -> None:
        super().__init__()
        squeezed = max(1, channels // RATIO)
        self.squeeze = nn.Linear(channels, squeezed, dtype=torch.float32)
        self.excite = nn.Linear(squeezed, channels, dtype=torch.float32)
        for layer in (self.squeeze, self.excite):
            cut_normal_(layer.weight, 1 / math.sqrt(layer.in_features), generator)
            nn.init.zeros_(layer.bias)

    def forward(self, f: Tensor) -> Tensor:
        hidden = elu(self.squeeze(f.mean((2, 3))))
        return f * torch.sigmoid(self.excite(hidden))[:, :, None, None]
