"""Samples and KLs of bounded normal units, each in one compiled pass over float32 on a CPU (normal.c).

Parameters are (rows, 2 units, ...): means, then log standard deviations, both bounded as 5 tanh(v / 5).
"""

import ctypes
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from dvaepp.kernels.build import Array, call, library
from dvaepp.kernels.policy import plain_floats

BOUND = 5.0  # as in normal.c


def sample(parameters: Tensor, noise: Tensor) -> Tensor:
    """mean + sd · noise."""
    if _compiled_for(parameters, noise):
        value: Tensor = _Sample.apply(parameters, noise)
        return value
    mean, log_sd = moments(parameters)
    return mean + log_sd.exp() * noise


def kl(q: Tensor, p: Tensor) -> Tensor:
    """KL(q || p), (rows,); p may have a single row for all."""
    if q.shape == p.shape and _compiled_for(q, p):
        value: Tensor = _KL.apply(q, p)
        return value
    q_mean, q_log_sd = moments(q)
    p_mean, p_log_sd = moments(p)
    gap = torch.exp(-2 * p_log_sd) * (torch.exp(2 * q_log_sd) + (q_mean - p_mean) ** 2)
    return (p_log_sd - q_log_sd + 0.5 * (gap - 1)).flatten(1).sum(1)


def moments(parameters: Tensor) -> tuple[Tensor, Tensor]:
    """Means and log standard deviations."""
    mean, log_sd = (BOUND * torch.tanh(parameters / BOUND)).chunk(2, 1)
    return mean, log_sd


class _Sample(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, parameters: Tensor, noise: Tensor) -> Tensor:
        q, noise = _pixels(parameters), _pixels(noise)
        value = q.new_empty(noise.shape)
        _run("dvaepp_normal_sample", q, noise=noise, value=value)
        ctx.save_for_backward(q, noise)
        ctx.shape = parameters.shape[2:]
        return _maps(value, ctx.shape)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dvalue: Tensor) -> tuple[Tensor, None]:
        q, noise = ctx.saved_tensors
        dq = q.new_empty(q.shape)
        _run("dvaepp_normal_sample_backward", q, noise=noise, dvalue=_pixels(dvalue), dq=dq)
        return _maps(dq, ctx.shape), None


class _KL(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, q: Tensor, p: Tensor) -> Tensor:
        ctx.shape = q.shape[2:]
        q, p = _pixels(q), _pixels(p)
        value = q.new_empty(q.shape[1])
        slopes = [q.new_empty(q.shape) if any(ctx.needs_input_grad) else None for _ in range(2)]
        _run("dvaepp_normal_kl", q, p=p, kl=value, dq=slopes[0], dp=slopes[1])
        if slopes[0] is not None:
            ctx.save_for_backward(*slopes)
        return value

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, ...]:
        return tuple(_maps(slope * grad[:, None], ctx.shape) for slope in ctx.saved_tensors)


def _pixels(x: Tensor) -> Tensor:
    """(rows, channels, ...) -> (pixels, rows, channels), each pixel's channels together."""
    x = x.movedim((0, 1), (-2, -1)).flatten(0, -3) if x.dim() > 2 else x[None]
    return x if x.stride(-1) == 1 else x.contiguous()


def _maps(x: Tensor, shape: torch.Size) -> Tensor:
    """The way back, for pixels of `shape`."""
    return x.unflatten(0, shape).movedim((-2, -1), (0, 1)) if shape else x[0]


class _Job(ctypes.Structure):
    """`job` of normal.c."""

    _fields_ = [(name, ctypes.c_void_p) for name in ("q", "p", "noise", "dvalue", "value", "kl", "dq", "dp")] + [
        (name, ctypes.c_int64)
        for name in ("pixels", "rows", "units")
        + tuple(f"{name}_{step}" for name in ("q", "p", "noise", "dvalue") for step in ("pixel", "row"))
    ]


def _run(function: str, q: Tensor, **arrays: Array) -> None:
    job = _Job(pixels=len(q), rows=q.shape[1], units=q.shape[2] // 2)
    arrays["q"] = q
    for name in ("q", "p", "noise", "dvalue"):
        array = arrays.get(name)
        if isinstance(array, Tensor):
            setattr(job, f"{name}_pixel", array.stride(0))
            setattr(job, f"{name}_row", array.stride(1))
    compiled = _compiled()
    assert compiled is not None
    call(getattr(compiled, function), job, **arrays)


def _compiled_for(*tensors: Tensor) -> bool:
    return plain_floats(tensors) and all(t.numel() for t in tensors) and _compiled() is not None


@cache
def _compiled() -> ctypes.CDLL | None:
    return library(Path(__file__).with_suffix(".c"))
