"""Squeeze and excitation (App. G): channels weighted by s = σ(W₂ ELU(W₁ mean(f) + b₁) + b₂), reduction ratio 4."""

import ctypes
import math
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import elu

from dvaepp.compiled import Array, call, library
from dvaepp.networks.dense import TRUNCATED_SD

RATIO = 4


class Excitation(nn.Module):
    """Channel weights σ(W₂ ELU(W₁ mean)) from the mean of each channel over the map."""

    def __init__(self, channels: int, generator: torch.Generator | None = None) -> None:
        super().__init__()
        squeezed = max(1, channels // RATIO)
        self.squeeze, self.excite = nn.Linear(channels, squeezed), nn.Linear(squeezed, channels)
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


class Saved(NamedTuple):
    """What `backward` takes: f, its mean over pixels, W₁'s activations, s."""

    f: Tensor
    mean: Tensor
    hidden: Tensor
    s: Tensor


def forward(f: Tensor, skip: Tensor, parameters: Sequence[Tensor]) -> tuple[Tensor, Saved]:
    """`excited` by excitation.c."""
    f, skip = f.contiguous(), skip.contiguous()
    _, groups, rows, channels = f.shape
    mean, s = f.new_empty(2, groups, rows, channels).unbind(0)
    saved, out = Saved(f, mean, f.new_empty(groups, rows, len(parameters[0])), s), torch.empty_like(f)
    _run("dvaepp_excite", saved, parameters, skip=skip, out=out)
    return out, saved


def backward(dout: Tensor, saved: Saved, parameters: Sequence[Tensor]) -> tuple[Tensor, list[Tensor]]:
    """The gradients of f and of the parameters; that of the skip is dout."""
    df, found = torch.empty_like(saved.f), [torch.empty_like(p) for p in parameters]
    slopes = dict(zip(("dw1", "db1", "dw2", "db2"), _kinds(found, saved.f.shape[1]), strict=True))
    _run("dvaepp_excite_backward", saved, parameters, dout=dout.contiguous(), df=df, **slopes)
    return df, found


class _Job(ctypes.Structure):
    """`job` of excitation.c."""

    _fields_ = [
        (name, ctypes.c_void_p)
        for name in ("f", "skip", "dout", "out", "df", "mean", "hidden", "s")
        + ("w1", "b1", "w2", "b2", "dw1", "db1", "dw2", "db2")
    ] + [(name, ctypes.c_int64) for name in ("pixels", "groups", "rows", "channels", "squeezed")]


def _run(function: str, saved: Saved, parameters: Sequence[Tensor], **arrays: Array) -> None:
    pixels, groups, rows, channels = saved.f.shape
    job = _Job(pixels=pixels, groups=groups, rows=rows, channels=channels, squeezed=saved.hidden.shape[-1])
    kinds = dict(zip(("w1", "b1", "w2", "b2"), _kinds(parameters, groups), strict=True))
    compiled = _compiled()
    assert compiled is not None
    call(getattr(compiled, function), job, **saved._asdict(), **kinds, **arrays)


def compiled() -> bool:
    return _compiled() is not None


@cache
def _compiled() -> ctypes.CDLL | None:
    return library(Path(__file__).with_suffix(".c"))
