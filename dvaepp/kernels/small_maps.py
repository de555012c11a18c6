"""Convolutions of maps of a few pixels as matrix products.

A convolution from P input pixels to Q output pixels is the matrix A[(p, i), (q, o)] = w[o, i, tap(p, q)], which is zero
where no tap of the kernel joins p and q. For maps of 1x1 and 2x2 pixels it has fewer entries than a padded convolution
multiplies. With few channels the matrix product is also much faster than a convolution routine on larger maps.
"""

from functools import cache

import torch
from torch import Tensor
from torch.nn.functional import conv2d, conv_transpose2d, pad, unfold

from dvaepp.kernels.policy import as_matrix
from dvaepp.kernels.products import linear


def pays(size: int, resize: str, inputs: int, outputs: int) -> bool:
    """Whether the matrix product is the faster form for a map of `size` x `size` pixels."""
    return as_matrix(size**2, _resized(size, resize) ** 2, inputs, outputs)


def convolution(x: Tensor, weight: Tensor, bias: Tensor | None, resize: str = "") -> Tensor:
    """A 3x3 convolution of x (rows, inputs, size, size), as `Conv` computes it; the result is channels-last."""
    matrix = _matrix(weight, x.shape[-1], resize)
    rows, out = x.shape[0], _resized(x.shape[-1], resize)
    flat = x.permute(0, 2, 3, 1).reshape(rows, -1)
    y = linear(flat, matrix.t(), None if bias is None else bias.repeat(out * out))
    return y.view(rows, out, out, -1).permute(0, 3, 1, 2)


def of_one_channel(x: Tensor, weight: Tensor, bias: Tensor | None, resize: str = "") -> Tensor:
    """A 3x3 convolution of maps of one channel, of any size: a product over its taps; the result is channels-last."""
    taps = unfold(x, 3, padding=1, stride=2 if resize == "d" else 1)  # (rows, 9, pixels)
    out = _resized(x.shape[-1], resize)
    y = linear(taps.transpose(1, 2), weight.flatten(1), bias)
    return y.unflatten(1, (out, out)).permute(0, 3, 1, 2)


def pointwise(x: Tensor, weight: Tensor, bias: Tensor | None, resize: str = "") -> Tensor:
    """A 1x1 convolution: a linear map of every pixel, of every second one ("d"), or onto every second one ("u")."""
    # This view's gradient is a view of the weight's gradient. That of weight[:, :, 0, 0] would be copied into zeros.
    kernel = weight.flatten(1)
    pixels = x[:, :, ::2, ::2] if resize == "d" else x
    if resize != "u":
        return linear(pixels.permute(0, 2, 3, 1), kernel, bias).permute(0, 3, 1, 2)
    y = linear(pixels.permute(0, 2, 3, 1), kernel.t())
    rows, height, width, outputs = y.shape
    spread = pad(y.view(rows, height, 1, width, 1, outputs), (0, 0, 0, 1, 0, 0, 0, 1))
    spread = spread.reshape(rows, 2 * height, 2 * width, outputs)
    return (spread if bias is None else spread + bias).permute(0, 3, 1, 2)


def _matrix(weight: Tensor, size: int, resize: str) -> Tensor:
    """The matrix A, (P · inputs, Q · outputs)."""
    if resize == "u":
        weight = weight.transpose(0, 1)  # the kernel of a transposed convolution is stored as (inputs, outputs)
    outputs, inputs = weight.shape[:2]
    taps, used = _taps(size, resize)  # (P, Q, taps)
    taps = taps.to(weight)
    # Each tap is copied by itself: copies of pieces of 2 x 2 taps would take twice as long.
    each = weight.flatten(2).unbind(2)
    kernels = torch.stack([each[tap].t() for tap in used]).flatten(1)
    joined = (taps.flatten(0, 1) @ kernels).view(*taps.shape[:2], inputs, outputs)
    return joined.transpose(1, 2).reshape(taps.shape[0] * inputs, -1)


@cache
def _taps(size: int, resize: str) -> tuple[Tensor, list[int]]:
    """taps[p, q, t] = 1 where tap number t of those used joins input pixel p to output pixel q, and the taps used.

    On a map of one pixel only the middle of the kernel joins anything; taps that join no pixels are left out.
    """
    pixels = torch.eye(size * size, dtype=torch.float32, device="cpu").reshape(size * size, 1, size, size)
    kernels = torch.eye(9, dtype=torch.float32, device="cpu").reshape(9, 1, 3, 3)
    if resize == "u":
        found = conv_transpose2d(pixels, kernels.transpose(0, 1), stride=2, padding=1, output_padding=1)
    else:
        found = conv2d(pixels, kernels, stride=2 if resize == "d" else 1, padding=1)
    taps = found.flatten(2).transpose(1, 2)
    used: list[int] = taps.sum((0, 1)).nonzero().flatten().tolist()
    return taps[:, :, used], used


def _resized(size: int, resize: str) -> int:
    return 2 * size if resize == "u" else (size + 1) // 2 if resize == "d" else size
