"""3x3 convolutions with several kernels side by side, by minimal filtering around the library's large products.

`winograd.after_elu` keeps small products in a core's cache. Large ones are faster in the library, if what is around
them costs little: here winograd.c transforms inputs, kernels and outputs, and reads kernels where they lie instead of
joining copies of them.
"""

import ctypes
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from dvaepp.kernels import winograd
from dvaepp.kernels.build import Array, call
from dvaepp.kernels.policy import LANES, TILE
from dvaepp.kernels.winograd import POINTS


def after_elu(x: Tensor, weights: Sequence[Tensor], biases: Sequence[Tensor] | None = None) -> Tensor:
    """ELU(x), (pixels, rows, inputs), by kernels (outputs, inputs or fewer, 3, 3): (pixels, rows, all outputs).

    A kernel of fewer inputs sees the first ones.
    """
    y: Tensor = _Wide.apply(x, len(weights), *weights, *(biases or ()))
    return y


class _Wide(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, kernels: int, *parameters: Tensor) -> Tensor:
        weights = [winograd.dense_kernel(w) for w in parameters[:kernels]]
        biases = [b.contiguous() for b in parameters[kernels:]]
        x = winograd.dense_channels(x[:, None])
        pixels, _, rows, inputs = x.shape
        outputs, tiles = kernels * len(weights[0]), pixels // TILE**2
        active, y = winograd.like(x, inputs), winograd.like(x, outputs)
        v, u = _points(x, rows * tiles, inputs), _points(x, inputs, outputs)
        _run("dvaepp_wide_in", weights, x, active, y, x=x, e=active, v=v, u=u, w=weights)
        _run("dvaepp_wide_out", weights, x, active, y, y=y, m=torch.bmm(v, u), bias=biases)
        ctx.save_for_backward(active, v, u, *weights)
        ctx.biased = bool(biases)
        return y[:, 0]

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
        active, v, u, *weights = ctx.saved_tensors
        dy = winograd.dense_channels(dy[:, None])
        for_x, for_weights = ctx.needs_input_grad[0], any(ctx.needs_input_grad[2:])
        dm = _points(dy, v.shape[1], u.shape[2])
        dbias = [w.new_empty(len(w)) for w in weights] if ctx.biased else []
        _run("dvaepp_wide_backward_in", weights, active, active, dy, dy=dy, dm=dm, dbias=dbias)
        found: dict[str, Array] = {}
        dx, dw = None, []
        if for_x:
            dx = winograd.gradient_like(active)
            found |= {"dx": dx, "dv": torch.bmm(dm, u.transpose(1, 2))}
        if for_weights:
            dw = [w.new_empty(w.shape) for w in weights]
            found |= {"dw": dw, "du": torch.bmm(v.transpose(1, 2), dm)}
        _run("dvaepp_wide_backward_out", weights, active, active, dy, e=active, **found)
        nothing: list[Tensor | None] = [None] * len(weights)
        return None if dx is None else dx[:, 0], None, *(dw or nothing), *dbias


def _points(like: Tensor, rows: int, channels: int) -> Tensor:
    """(points, rows, channels), with a vector between points."""
    return like.new_empty(POINTS, rows * channels + LANES)[:, :-LANES].unflatten(1, (rows, channels))


class _Job(winograd.Job):
    """`wide` of winograd.c."""

    _fields_ = [(name, ctypes.c_void_p) for name in ("v", "u", "dm", "m", "dv", "du", "w_inputs", "w_outputs")]


def _run(
    function: str, weights: Sequence[Tensor], x: Tensor, like_e: Tensor, like_y: Tensor, /, **arrays: Array
) -> None:
    job = _Job()
    winograd.describe(job, x, like_e, like_y)
    job.groups, job.outputs = len(weights), len(weights[0])
    job.x_group, job.e_group, job.y_group = 0, 0, job.outputs
    sizes = (ctypes.c_int64 * len(weights))(*(w.shape[1] for w in weights))
    steps = (ctypes.c_int64 * len(weights))(*(w.stride(0) for w in weights))
    job.w_inputs, job.w_outputs = ctypes.addressof(sizes), ctypes.addressof(steps)
    call(getattr(winograd.compiled(), function), job, **arrays)
