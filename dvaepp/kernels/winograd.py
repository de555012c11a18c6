"""3x3 convolutions of stride 1 on maps of 4x4 pixels by the minimal filtering of Winograd (Lavin and Gray 2016).

    y = A [(G w Gᵀ) ⊙ (B x Bᵀ)] Aᵀ,   F(4x4, 3x3): 36 products per pair of channels instead of 144

Larger maps are cut into tiles of 4x4 pixels. The interpolation points 0, ±1, ±2, ∞ cost about one digit in float32:
for outputs of unit size the error is 1.3e-5, and that of a direct convolution 1.1e-6. winograd.c takes a block of rows
through all stages while it is in a core's cache. The plain twin is `conv2d(elu(x), weight, bias, padding=1)`.
"""

import ctypes
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from dvaepp.kernels import policy
from dvaepp.kernels.build import Array, call
from dvaepp.kernels.operation import Size, check_floats, check_shape, no_second_derivative, operation
from dvaepp.kernels.policy import TILE


def after_elu(x: Tensor, weights: Sequence[Tensor], biases: Sequence[Tensor] = ()) -> Tensor:
    """The convolutions of ELU(x), x (pixels, groups, rows, inputs), by a kernel (outputs, inputs, 3, 3) per group."""
    y: Tensor = _convolve(x, list(weights), list(biases))[0]
    return y


def _run(x: Tensor, weights: list[Tensor], biases: list[Tensor]) -> tuple[Tensor, Tensor]:
    """The convolutions, and ELU(x) for the backward pass; both have the memory layout of x."""
    y, active = _fake(x, weights, biases)
    arrays: dict[str, Array] = {"y": y, "e": active, "bias": [b.contiguous() for b in biases]}
    _call("dvaepp_convolve", _dense_channels(x), active, y, _alike(weights), **arrays)
    return y, active


def _fake(x: Tensor, weights: list[Tensor], biases: list[Tensor]) -> tuple[Tensor, Tensor]:
    _check("convolve_after_elu", x, weights, biases)
    check_shape("convolve_after_elu", "weights", (len(weights),), (x.shape[1],))
    for weight in weights:
        check_shape("convolve_after_elu", "a kernel", weight.shape, (len(weights[0]), x.shape[-1], 3, 3))
    x = _dense_channels(x)
    return _like(x, len(weights[0])), _like(x, x.shape[-1])


def _run_backward(
    dy: Tensor, active: Tensor, weights: list[Tensor], for_x: bool, biased: bool
) -> tuple[Tensor, list[Tensor], list[Tensor]]:
    """The gradients of x, of the kernels and of the biases; the first is empty unless `for_x` asks for it."""
    dx, dw, dbias = _fake_backward(dy, active, weights, for_x, biased)
    if len(active) > TILE**2:
        dx.zero_()  # the windows of neighbouring tiles overlap, so that their gradients are added to dx
    dy = _dense_channels(dy)
    arrays: dict[str, Array] = {"e": active, "dx": dx if for_x else None, "dy": dy, "dw": dw, "dbias": dbias}
    _call("dvaepp_convolve_backward", active, active, dy, _alike(weights), **arrays)
    return dx, dw, dbias


def _fake_backward(
    dy: Tensor, active: Tensor, weights: list[Tensor], for_x: bool, biased: bool
) -> tuple[Tensor, list[Tensor], list[Tensor]]:
    _check("convolve_after_elu_backward", active, weights, [])
    check_floats("convolve_after_elu_backward", dy, active)
    check_shape("convolve_after_elu_backward", "dy", dy.shape, (*active.shape[:-1], len(weights[0])))
    dx = torch.empty_like(active) if for_x else active.new_empty(0)
    return dx, [w.new_empty(w.shape) for w in weights], [w.new_empty(len(w)) for w in weights if biased]


def _setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    """Save for the backward pass what operations of (x, weights, biases) return beside their result."""
    _, weights, biases = inputs
    ctx.save_for_backward(*output[1:], *weights)
    ctx.mark_non_differentiable(*output[1:])
    ctx.set_materialize_grads(False)
    ctx.biased = bool(biases)


def _backward(ctx: Any, dy: Tensor, _: None) -> tuple[Tensor | None, list[Tensor], list[Tensor]]:
    active, *weights = ctx.saved_tensors
    dx, dw, dbias = _convolve_backward(dy, active, weights, ctx.needs_input_grad[0], ctx.biased)
    return dx if ctx.needs_input_grad[0] else None, dw, dbias


_convolve = operation(
    "convolve_after_elu(Tensor x, Tensor[] weights, Tensor[] biases) -> (Tensor, Tensor)",
    _run,
    _fake,
    setup_context=_setup_context,
    backward=_backward,
)
_convolve_backward = operation(
    "convolve_after_elu_backward(Tensor dy, Tensor active, Tensor[] weights, bool for_x, bool biased) "
    "-> (Tensor, Tensor[], Tensor[])",
    _run_backward,
    _fake_backward,
    backward=no_second_derivative,
)


def _check(name: str, x: Tensor, weights: Sequence[Tensor], biases: Sequence[Tensor]) -> None:
    """Refuse what no operation on activations (pixels, groups, rows, channels) takes."""
    check_floats(name, x, *weights, *biases)
    side = round(int(x.shape[0]) ** 0.5)
    if x.dim() != 4 or side % TILE or side**2 != x.shape[0]:
        raise ValueError(
            f"{name}: x must be (pixels, groups, rows, channels) of a square map of whole {TILE} x {TILE} tiles, "
            f"got {tuple(x.shape)}"
        )
    for bias, weight in zip(biases, weights, strict=True) if biases else ():
        check_shape(name, "a bias", bias.shape, weight.shape[:1])


def _like(x: Tensor, channels: Size) -> Tensor:
    """Memory for the pixels, groups and rows of x, in the same order, so that maps stay channels-last."""
    pixels, groups, rows, _ = x.shape
    if groups == 1 and x.stride(2) > x.stride(0):
        return x.new_empty(rows, pixels, channels).transpose(0, 1)[:, None]
    return x.new_empty(pixels, groups, rows, channels)


def _dense_channels(x: Tensor) -> Tensor:
    """x, or a copy of it if the channels of a pixel are not contiguous."""
    return x if x.stride(-1) == 1 else x.contiguous()


def _alike(weights: Sequence[Tensor]) -> list[Tensor]:
    """The kernels, or contiguous copies if they differ in their strides, of which winograd.c takes one for all."""
    if all(w.stride() == (weights[0].stride(0), 9, 3, 1) for w in weights):
        return list(weights)
    return [w.contiguous() for w in weights]


class _ConvolutionJob(ctypes.Structure):
    """`job` of winograd.c."""

    _fields_ = [(name, ctypes.c_void_p) for name in ("x", "e", "dx", "dy", "y", "w", "bias", "dw", "dbias")] + [
        (name, ctypes.c_int64)
        for name in ("groups", "rows", "inputs", "outputs", "side")
        + ("x_pixel", "x_row", "x_group", "e_pixel", "e_row", "e_group", "y_pixel", "y_row", "y_group")
        + ("w_output", "dw_output")
    ]


def _call(function: str, x: Tensor, like_e: Tensor, like_y: Tensor, weights: Sequence[Tensor], **arrays: Array) -> None:
    """Call a function of winograd.c; `like_e` and `like_y` have the strides of ELU(x), y and their gradients."""
    job = _ConvolutionJob()
    pixels, job.groups, job.rows, job.inputs = x.shape
    job.outputs = like_y.shape[-1]
    job.side = round(pixels**0.5) // TILE
    job.w_output, job.dw_output = weights[0].stride(0), 9 * job.inputs
    job.x_pixel, job.x_group, job.x_row, _ = x.stride()
    job.e_pixel, job.e_group, job.e_row, _ = like_e.stride()
    job.y_pixel, job.y_group, job.y_row, _ = like_y.stride()
    call(getattr(policy.functions("winograd"), function), job, x=x, w=weights, **arrays)
