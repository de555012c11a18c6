"""3x3 convolutions of stride 1 on maps of 4x4 pixels by the minimal filtering of Winograd (Lavin and Gray 2016).

    y = A [(G w Gᵀ) ⊙ (B x Bᵀ)] Aᵀ,   F(4x4, 3x3): 36 products per pair of channels instead of 144

Larger maps are cut into tiles of 4x4. The interpolation points 0, ±1, ±2, ∞ cost a digit in float32: 1.3e-5 against
1.1e-6 of a direct convolution, for outputs of unit size. winograd.c has two forms: `after_elu` here does all of it in a
core's cache, for small products; wide.py leaves large ones to the library. The plain twin of both is
`conv2d(elu(x), weight, bias, padding=1)`.
"""

import ctypes
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from dvaepp.kernels.build import Array, call, library
from dvaepp.kernels.policy import TILE

POINTS = 36


def after_elu(x: Tensor, weights: Sequence[Tensor], biases: Sequence[Tensor] | None = None) -> Tensor:
    """Convolutions of ELU(x), (pixels, groups, rows, inputs), with a kernel (outputs, inputs, 3, 3) for each group."""
    y: Tensor = _InTheCache.apply(x, biases is not None, *weights, *(biases or ()))
    return y


class _InTheCache(torch.autograd.Function):
    """`after_elu` by winograd.c. Results are laid out like x, so that maps in and out of it stay channels-last."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, biased: bool, *parameters: Tensor) -> Tensor:
        x, groups = dense_channels(x), x.shape[1]
        weights, biases = _alike(parameters[:groups]), [b.contiguous() for b in parameters[groups:]]
        active, y = like(x, x.shape[-1]), like(x, len(weights[0]))
        _run("dvaepp_convolve", x, active, y, weights, e=active, y=y, bias=biases)
        ctx.save_for_backward(active, *weights)
        ctx.biased = biased
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
        active, *weights = ctx.saved_tensors
        dy, dx, wanted = dense_channels(dy), None, ctx.needs_input_grad
        if wanted[0]:
            dx = gradient_like(active)
        dw = [w.new_empty(w.shape) for w in weights] if any(wanted[2:]) else []
        dbias = [w.new_empty(len(w)) for w in weights] if ctx.biased else []
        _run("dvaepp_convolve_backward", active, active, dy, weights, e=active, dx=dx, dy=dy, dw=dw, dbias=dbias)
        nothing: list[Tensor | None] = [None] * len(weights)
        return dx, None, *(dw or nothing), *dbias


def gradient_like(active: Tensor) -> Tensor:
    """Room for dx; zeros where windows of several tiles add up."""
    return torch.zeros_like(active) if len(active) > TILE**2 else torch.empty_like(active)


def like(x: Tensor, channels: int) -> Tensor:
    """Room for as many pixels, groups and rows, in the order in which x has them."""
    pixels, groups, rows, _ = x.shape
    if groups == 1 and x.stride(2) > x.stride(0):
        return x.new_empty(rows, pixels, channels).transpose(0, 1)[:, None]
    return x.new_empty(pixels, groups, rows, channels)


def dense_channels(x: Tensor) -> Tensor:
    return x if x.stride(-1) == 1 else x.contiguous()


def dense_kernel(weight: Tensor) -> Tensor:
    """As winograd.c reads it: all of an output's taps lie together."""
    return weight if weight.stride()[1:] == (9, 3, 1) else weight.contiguous()


def _alike(weights: Sequence[Tensor]) -> list[Tensor]:
    """Kernels of the same strides, where all of an output's lie together."""
    if all(w.stride() == (weights[0].stride(0), 9, 3, 1) for w in weights):
        return list(weights)
    return [w.contiguous() for w in weights]


class Job(ctypes.Structure):
    """`job` of winograd.c."""

    _fields_ = [(name, ctypes.c_void_p) for name in ("x", "e", "dx", "dy", "y", "w", "bias", "dw", "dbias")] + [
        (name, ctypes.c_int64)
        for name in ("groups", "rows", "inputs", "outputs", "side")
        + ("x_pixel", "x_row", "x_group", "e_pixel", "e_row", "e_group", "y_pixel", "y_row", "y_group", "w_output")
    ]


def describe(job: Job, x: Tensor, like_e: Tensor, like_y: Tensor) -> None:
    """Sizes and strides of activations."""
    pixels, job.groups, job.rows, job.inputs = x.shape
    job.outputs = like_y.shape[-1]
    job.side = round(pixels**0.5) // TILE
    job.x_pixel, job.x_group, job.x_row, _ = x.stride()
    job.e_pixel, job.e_group, job.e_row, _ = like_e.stride()
    job.y_pixel, job.y_group, job.y_row, _ = like_y.stride()


def _run(function: str, x: Tensor, like_e: Tensor, like_y: Tensor, weights: Sequence[Tensor], **arrays: Array) -> None:
    job = Job()
    describe(job, x, like_e, like_y)
    job.w_output = weights[0].stride(0)
    call(getattr(compiled(), function), job, x=x, w=weights, **arrays)


@cache
def compiled() -> ctypes.CDLL | None:
    return library(Path(__file__).with_suffix(".c"))
