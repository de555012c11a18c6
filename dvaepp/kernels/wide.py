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

from dvaepp.kernels import policy, winograd
from dvaepp.kernels.build import Array, call
from dvaepp.kernels.operation import Size, check_floats, check_shape, no_second_derivative, operation
from dvaepp.kernels.policy import LANES, TILE
from dvaepp.kernels.winograd import POINTS


def after_elu(x: Tensor, weights: Sequence[Tensor], biases: Sequence[Tensor] = ()) -> Tensor:
    """ELU(x), (pixels, rows, inputs), by kernels (outputs, inputs or fewer, 3, 3): (pixels, rows, all outputs).

    A kernel of fewer inputs sees the first ones.
    """
    y: Tensor = _wide(x[:, None], list(weights), list(biases))[0]
    return y.squeeze(1)  # an index would bring back zeros and a copy


def _run(x: Tensor, weights: list[Tensor], biases: list[Tensor]) -> tuple[Tensor, ...]:
    """The result, and for the backward pass ELU(x) and the transformed inputs V and kernels U."""
    y, active, v, u = _fake(x, weights, biases)
    x, weights = winograd.dense_channels(x), [winograd.dense_kernel(w) for w in weights]
    _call("dvaepp_wide_in", weights, x, active, y, x=x, e=active, v=v, u=u, w=weights)
    _call("dvaepp_wide_out", weights, x, active, y, y=y, m=torch.bmm(v, u), bias=[b.contiguous() for b in biases])
    return y, active, v, u


def _fake(x: Tensor, weights: list[Tensor], biases: list[Tensor]) -> tuple[Tensor, ...]:
    _check("wide_after_elu", x, weights, biases)
    x = winograd.dense_channels(x)
    pixels, _, rows, inputs = x.shape
    outputs, tiles = len(weights) * len(weights[0]), pixels // TILE**2
    v, u = _points(x, rows * tiles, inputs), _points(x, inputs, outputs)
    return winograd.like(x, outputs), winograd.like(x, inputs), v, u


def _check(name: str, x: Tensor, weights: Sequence[Tensor], biases: Sequence[Tensor]) -> None:
    winograd.check(name, x, weights, biases)
    outputs, inputs = len(weights[0]), x.shape[-1]
    for weight in weights:
        seen = weight.shape[1]
        check_shape(name, "a kernel", weight.shape, (outputs, seen, 3, 3))
        if seen > inputs or any(n % LANES for n in (seen, inputs, outputs)) or x.shape[1] != 1:
            raise ValueError(
                f"{name}: x must have one group, and channels must be multiples of {LANES}, not more in a kernel than "
                f"in x; got x {tuple(x.shape)} and a kernel {tuple(weight.shape)}"
            )


def _run_backward(
    dy: Tensor, active: Tensor, v: Tensor, u: Tensor, weights: list[Tensor], for_x: bool, biased: bool
) -> tuple[Tensor, list[Tensor], list[Tensor]]:
    dx, dw, dbias = _fake_backward(dy, active, v, u, weights, for_x, biased)
    if len(active) > TILE**2:
        dx.zero_()  # the windows of several tiles overlap, and what they give is added up
    dy, weights = winograd.dense_channels(dy), [winograd.dense_kernel(w) for w in weights]
    dm = _points(dy, v.shape[1], u.shape[2])
    _call("dvaepp_wide_backward_in", weights, active, active, dy, dy=dy, dm=dm, dbias=dbias)
    found: dict[str, Array] = {"dw": dw, "du": torch.bmm(v.transpose(1, 2), dm)}
    if for_x:
        found |= {"dx": dx, "dv": torch.bmm(dm, u.transpose(1, 2))}
    _call("dvaepp_wide_backward_out", weights, active, active, dy, e=active, **found)
    return dx, dw, dbias


def _fake_backward(
    dy: Tensor, active: Tensor, v: Tensor, u: Tensor, weights: list[Tensor], for_x: bool, biased: bool
) -> tuple[Tensor, list[Tensor], list[Tensor]]:
    _check("wide_after_elu_backward", active, weights, [])
    check_floats("wide_after_elu_backward", dy, active, v, u)
    (pixels, _, rows, inputs), outputs = active.shape, len(weights) * len(weights[0])
    check_shape("wide_after_elu_backward", "dy", dy.shape, (pixels, 1, rows, outputs))
    check_shape("wide_after_elu_backward", "v", v.shape, (POINTS, rows * (pixels // TILE**2), inputs))
    check_shape("wide_after_elu_backward", "u", u.shape, (POINTS, inputs, outputs))
    dx = torch.empty_like(active) if for_x else active.new_empty(0)
    return dx, [w.new_empty(w.shape) for w in weights], [w.new_empty(len(w)) for w in weights if biased]


def _backward(ctx: Any, dy: Tensor, *_: None) -> tuple[Tensor | None, list[Tensor], list[Tensor]]:
    active, v, u, *weights = ctx.saved_tensors
    dx, dw, dbias = _wide_backward(dy, active, v, u, weights, ctx.needs_input_grad[0], ctx.biased)
    return dx if ctx.needs_input_grad[0] else None, dw, dbias


_wide = operation(
    "wide_after_elu(Tensor x, Tensor[] weights, Tensor[] biases) -> (Tensor, Tensor, Tensor, Tensor)",
    _run,
    _fake,
    setup_context=winograd.setup_context,
    backward=_backward,
)
_wide_backward = operation(
    "wide_after_elu_backward(Tensor dy, Tensor active, Tensor v, Tensor u, Tensor[] weights, bool for_x, bool biased) "
    "-> (Tensor, Tensor[], Tensor[])",
    _run_backward,
    _fake_backward,
    backward=no_second_derivative,
)


def _points(like: Tensor, rows: Size, channels: Size) -> Tensor:
    """(points, rows, channels), with a gap of one vector after each point.

    Without the gap all 36 points of a power of two of channels would compete for the same lines of the cache.
    """
    return like.new_empty(POINTS, rows * channels + LANES)[:, :-LANES].unflatten(1, (rows, channels))


class _Job(winograd.Job):
    """`wide` of winograd.c."""

    _fields_ = [(name, ctypes.c_void_p) for name in ("v", "u", "dm", "m", "dv", "du", "w_inputs", "w_outputs")]


def _call(
    function: str, weights: Sequence[Tensor], x: Tensor, like_e: Tensor, like_y: Tensor, /, **arrays: Array
) -> None:
    job = _Job()
    winograd.describe(job, x, like_e, like_y)
    job.groups, job.outputs = len(weights), len(weights[0])
    job.x_group, job.e_group, job.y_group = 0, 0, job.outputs
    sizes = (ctypes.c_int64 * len(weights))(*(w.shape[1] for w in weights))
    steps = (ctypes.c_int64 * len(weights))(*(w.stride(0) for w in weights))
    job.w_inputs, job.w_outputs = ctypes.addressof(sizes), ctypes.addressof(steps)
    call(getattr(policy.functions("wide"), function), job, **arrays)
