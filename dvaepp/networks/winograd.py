"""3x3 convolutions of stride 1 on maps of 4x4 pixels by the minimal filtering of Winograd (Lavin and Gray 2016).

    y = A [(G w Gᵀ) ⊙ (B x Bᵀ)] Aᵀ,   F(4x4, 3x3): 36 products per pair of channels instead of 144

Activations are pixel-major, (pixels, ..., rows, channels): each transform is then one product with a fixed matrix, and
the 36 products of all rows one batched product. Larger maps are cut into tiles of 4x4. The interpolation points
0, ±1, ±2, ∞ cost a digit in float32: 1.3e-5 against 1.1e-6 of a direct convolution, for outputs of unit size.

winograd.c has the same, in two forms: `after_elu` does all of it in a core's cache, for small products; wide.py leaves
large ones to the library.
"""

import ctypes
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn.functional import elu

from dvaepp.compiled import Array, call, library, plain_floats
from dvaepp.networks.pixels import to_maps, to_pixels

TILE = 4
POINTS = 36
LANES = 16  # of a vector in C
SMALL_PRODUCT = 480 * 32  # inputs x outputs up to which `after_elu` of winograd.c is faster than torch
MANY_CHANNELS = 32 * 32  # inputs x outputs from which the transforms are worth their cost on channels-last maps
B = [[4, 0, -5, 0, 1, 0], [0, -4, -4, 1, 1, 0], [0, 4, -4, -1, 1, 0]]
B += [[0, -2, -1, 2, 1, 0], [0, 2, -1, -2, 1, 0], [0, 4, 0, -5, 0, 1]]
G = [[1 / 4, 0, 0], [-1 / 6, -1 / 6, -1 / 6], [-1 / 6, 1 / 6, -1 / 6], [1 / 24, 1 / 12, 1 / 6]]
G += [[1 / 24, -1 / 12, 1 / 6], [0, 0, 1]]
A = [[1, 1, 1, 1, 1, 0], [0, 1, -1, 2, -2, 0], [0, 1, 1, 4, 4, 0], [0, 1, -1, 8, -8, 1]]


class Transforms(NamedTuple):
    """`inputs` (tiles · 36, pixels) with zero padding, `outputs` (pixels, tiles · 36), `kernels` (36, 9)."""

    inputs: Tensor
    outputs: Tensor
    kernels: Tensor


def fits(size: int) -> bool:
    return size % TILE == 0 and size <= 2 * TILE  # beyond, the transforms, dense here, outgrow what they save


def fits_the_cache(size: int) -> bool:
    """For `in_the_cache`, which transforms tile by tile."""
    return size % TILE == 0 and size <= 4 * TILE


def kernels(weight: Tensor) -> Tensor:
    """(36, inputs, ..., outputs) of kernels (outputs, inputs, 3, 3), or of a stack of them before these axes."""
    *stack, outputs, inputs, _, _ = weight.shape
    taps = weight.flatten(-2).movedim(-1, 0).transpose(-1, -2)  # (9, ..., inputs, outputs)
    made = transforms(TILE, weight.dtype, weight.device).kernels @ taps.reshape(9, -1)
    return made.view(POINTS, *stack, inputs, outputs)


def convolution(x: Tensor, kernel: Tensor) -> Tensor:
    """x (pixels, ..., rows, inputs) by transformed kernels (36, ..., inputs, outputs): (pixels, ..., rows, outputs)."""
    pixels = x.shape[0]
    t = transforms(round(pixels**0.5), x.dtype, x.device)
    v = (t.inputs @ x.reshape(pixels, -1)).view(-1, *x.shape[1:])
    tiles = len(v) // POINTS
    if tiles > 1:  # tile-major inside a point, so that the rows of all tiles share a product
        v = v.view(POINTS, tiles, *x.shape[1:]).movedim(1, -3).flatten(-3, -2)
    m = torch.matmul(v, kernel)
    if tiles > 1:
        m = m.unflatten(-2, (tiles, -1)).movedim(-3, 1)
    shape = (pixels, *x.shape[1:-1], kernel.shape[-1])
    return (t.outputs @ m.reshape(tiles * POINTS, -1)).view(shape)


def on_maps(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """The same for maps (rows, inputs, size, size); the result is channels-last."""
    size = x.shape[-1]
    y = convolution(to_pixels(x), kernels(weight))
    if bias is not None:
        y = y + bias
    return to_maps(y, size).contiguous(memory_format=torch.channels_last)


@cache
def transforms(size: int, dtype: torch.dtype, device: torch.device) -> Transforms:
    b, g, a = (torch.tensor(rows, dtype=torch.float64, device="cpu") for rows in (B, G, A))
    per_side = size // TILE
    inputs, outputs = [], []
    for tile in range(per_side):
        # rows TILE · tile - 1 ... + 6 of the padded side, where those outside are zero and drop out
        cut = torch.zeros(6, size, dtype=torch.float64, device="cpu")
        for k in range(6):
            pixel = TILE * tile - 1 + k
            if 0 <= pixel < size:
                cut[k, pixel] = 1
        inputs.append(b @ cut)
        place = torch.zeros(size, TILE, dtype=torch.float64, device="cpu")
        place[TILE * tile : TILE * (tile + 1)] = torch.eye(TILE, dtype=torch.float64, device="cpu")
        outputs.append(place @ a)
    pairs = [(i, j) for i in range(per_side) for j in range(per_side)]
    # point-major: the 36 points of all tiles, each point's tiles together
    into = torch.stack([torch.kron(inputs[i], inputs[j]) for i, j in pairs], 1).flatten(0, 1)
    out_of = torch.stack([torch.kron(outputs[i], outputs[j]) for i, j in pairs], 2).flatten(1)
    made = (into, out_of, torch.kron(g, g))
    return Transforms(*(m.to(dtype=dtype, device=device) for m in made))


def after_elu(x: Tensor, weights: Sequence[Tensor], biases: Sequence[Tensor] | None = None) -> Tensor:
    """Convolutions of ELU(x), (pixels, groups, rows, inputs), with a kernel (outputs, inputs, 3, 3) for each group."""
    if in_the_cache(x, weights):
        y: Tensor = _InTheCache.apply(x, biases is not None, *weights, *(biases or ()))
        return y
    if len(weights) == 1:
        y = convolution(elu(x.squeeze(1)), kernels(weights[0]))[:, None]
    else:
        y = convolution(elu(x), kernels(torch.stack(list(weights))))
    return y if biases is None else y + torch.stack(list(biases)).unsqueeze(-2)


def in_the_cache(x: Tensor, weights: Sequence[Tensor]) -> bool:
    """Whether winograd.c takes these kernels, for maps whose sides are multiples of 4."""
    small = weights[0][:, :, 0, 0].numel() <= SMALL_PRODUCT
    return small and plain_floats((x, *weights)) and compiled() is not None


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
