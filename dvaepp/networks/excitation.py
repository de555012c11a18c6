"""Squeeze and excitation (App. G): channels weighted by s = σ(W₂ ELU(W₁ mean(f) + b₁) + b₂), reduction ratio 4."""

import ctypes
import math
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
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


def excited(parts: Sequence[Excitation], f: Tensor, skip: Tensor) -> Tensor:
    """skip + s · f on pixel-major activations (pixels, groups, rows, channels), one of `parts` for each group."""
    weights = [[p.squeeze.weight, p.squeeze.bias, p.excite.weight, p.excite.bias] for p in parts]
    tensors = [f, skip, *(w for group in weights for w in group)]
    if all(t.dtype == torch.float32 and t.device.type == "cpu" for t in tensors) and _compiled() is not None:
        out: Tensor = _Excited.apply(f, skip, *(w for kind in zip(*weights, strict=True) for w in kind))
        return out
    w1, b1, w2, b2 = (torch.stack(kind) for kind in zip(*weights, strict=True))
    hidden = elu(torch.matmul(f.mean(0), w1.transpose(1, 2)) + b1[:, None])
    return torch.addcmul(skip, f, torch.sigmoid(torch.matmul(hidden, w2.transpose(1, 2)) + b2[:, None]))


class _Excited(torch.autograd.Function):
    """`excited` by excitation.c, from all W₁, then all b₁, W₂ and b₂."""

    @staticmethod
    def forward(ctx: Any, f: Tensor, skip: Tensor, *parameters: Tensor) -> Tensor:
        f, skip, parameters = f.contiguous(), skip.contiguous(), tuple(p.contiguous() for p in parameters)
        _, groups, rows, channels = f.shape
        squeezed = len(parameters[0])
        mean, s = f.new_empty(2, groups, rows, channels).unbind(0)
        hidden, out = f.new_empty(groups, rows, squeezed), torch.empty_like(f)
        _run("dvaepp_excite", f, parameters, mean, hidden, s, skip=skip, out=out)
        ctx.save_for_backward(f, mean, hidden, s, *parameters)
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dout: Tensor) -> tuple[Tensor, ...]:
        f, mean, hidden, s, *parameters = ctx.saved_tensors
        dout, df, n = dout.contiguous(), torch.empty_like(f), f.shape[1]
        found = [torch.empty_like(p) for p in parameters]
        slopes = {name: found[i * n : (i + 1) * n] for i, name in enumerate(("dw1", "db1", "dw2", "db2"))}
        _run("dvaepp_excite_backward", f, parameters, mean, hidden, s, dout=dout, df=df, **slopes)
        return df, dout, *found


class _Job(ctypes.Structure):
    """`job` of excitation.c."""

    _fields_ = [
        (name, ctypes.c_void_p)
        for name in ("f", "skip", "dout", "out", "df", "mean", "hidden", "s")
        + ("w1", "b1", "w2", "b2", "dw1", "db1", "dw2", "db2")
    ] + [(name, ctypes.c_int64) for name in ("pixels", "groups", "rows", "channels", "squeezed")]


def _run(
    function: str, f: Tensor, parameters: Sequence[Tensor], mean: Tensor, hidden: Tensor, s: Tensor, **arrays: Array
) -> None:
    pixels, groups, rows, channels = f.shape
    job = _Job(pixels=pixels, groups=groups, rows=rows, channels=channels, squeezed=hidden.shape[-1])
    kinds = {name: parameters[i * groups : (i + 1) * groups] for i, name in enumerate(("w1", "b1", "w2", "b2"))}
    compiled = _compiled()
    assert compiled is not None
    call(getattr(compiled, function), job, f=f, mean=mean, hidden=hidden, s=s, **kinds, **arrays)


@cache
def _compiled() -> ctypes.CDLL | None:
    return library(Path(__file__).with_suffix(".c"))
