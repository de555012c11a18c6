"""Squeeze and excitation (App. G): channels weighted by s = σ(W₂ ELU(W₁ mean(f) + b₁) + b₂), reduction ratio 4."""

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn.functional import elu

from dvaepp.networks.dense import TRUNCATED_SD

RATIO = 4


class Excitation(nn.Module):
    """Channel weights σ(W₂ ELU(W₁ mean)) from the mean of each channel over the map."""

    def __init__(self, channels: int, generator: torch.Generator | None = None) -> None:
        super().__init__()
        squeezed = max(1, channels // RATIO)
        self.squeeze = nn.Linear(channels, squeezed, dtype=torch.float32)
        self.excite = nn.Linear(squeezed, channels, dtype=torch.float32)
        for layer in (self.squeeze, self.excite):
            sd = 1 / math.sqrt(layer.in_features) / TRUNCATED_SD
            nn.init.trunc_normal_(layer.weight, std=sd, a=-2 * sd, b=2 * sd, generator=generator)
            nn.init.zeros_(layer.bias)

    def forward(self, f: Tensor) -> Tensor:
        hidden = elu(self.squeeze(f.mean((2, 3))))
        return f * torch.sigmoid(self.excite(hidden))[:, :, None, None]


def excited(f: Tensor, skip: Tensor, parameters: Sequence[Tensor]) -> Tensor:
    """skip + s · f on pixel-major activations (pixels, groups, rows, channels).

    `parameters` are W₁ of every group, then b₁, W₂ and b₂ of every group, as `parameters_of` lists them.
    """
    w1, b1, w2, b2 = (torch.stack(list(kind)) for kind in _kinds(parameters, f.shape[1]))
    hidden = elu(torch.matmul(f.mean(0), w1.transpose(1, 2)) + b1[:, None])
    return torch.addcmul(skip, f, torch.sigmoid(torch.matmul(hidden, w2.transpose(1, 2)) + b2[:, None]))


def parameters_of(parts: Sequence[Excitation]) -> list[Tensor]:
    layers = [[p.squeeze for p in parts], [p.excite for p in parts]]
    return [tensor for row in layers for kind in ("weight", "bias") for tensor in (getattr(x, kind) for x in row)]


def _kinds(parameters: Sequence[Tensor], groups: int) -> list[Sequence[Tensor]]:
    return [parameters[i * groups : (i + 1) * groups] for i in range(4)]
