"""3x3 convolutions of stride 1 on maps of 4x4 pixels by the minimal filtering of Winograd (Lavin and Gray 2016).

    y = A [(G w Gᵀ) ⊙ (B x Bᵀ)] Aᵀ,   F(4x4, 3x3): 36 products per pair of channels instead of 144

Activations are pixel-major, (pixels, ..., rows, channels): each transform is then one product with a fixed matrix, and
the 36 products of all rows one batched product. Larger maps are cut into tiles of 4x4. The interpolation points
0, ±1, ±2, ∞ cost a digit in float32: 1.3e-5 against 1.1e-6 of a direct convolution, for outputs of unit size.
"""

from functools import cache
from typing import NamedTuple

import torch
from torch import Tensor

TILE = 4
POINTS = 36
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
    y = convolution(x.permute(2, 3, 0, 1).flatten(0, 1), kernels(weight))
    if bias is not None:
        y = y + bias
    maps = y.unflatten(0, (size, size)).permute(2, 3, 0, 1)
    return maps.contiguous(memory_format=torch.channels_last)


@cache
def transforms(size: int, dtype: torch.dtype, device: torch.device) -> Transforms:
    b, g, a = (torch.tensor(rows, dtype=torch.float64) for rows in (B, G, A))
    per_side = size // TILE
    inputs, outputs = [], []
    for tile in range(per_side):
        # rows TILE · tile - 1 ... + 6 of the padded side, where those outside are zero and drop out
        cut = torch.zeros(6, size, dtype=torch.float64)
        for k in range(6):
            pixel = TILE * tile - 1 + k
            if 0 <= pixel < size:
                cut[k, pixel] = 1
        inputs.append(b @ cut)
        place = torch.zeros(size, TILE, dtype=torch.float64)
        place[TILE * tile : TILE * (tile + 1)] = torch.eye(TILE, dtype=torch.float64)
        outputs.append(place @ a)
    pairs = [(i, j) for i in range(per_side) for j in range(per_side)]
    # point-major: the 36 points of all tiles, each point's tiles together
    into = torch.stack([torch.kron(inputs[i], inputs[j]) for i, j in pairs], 1).flatten(0, 1)
    out_of = torch.stack([torch.kron(outputs[i], outputs[j]) for i, j in pairs], 2).flatten(1)
    made = (into, out_of, torch.kron(g, g))
    return Transforms(*(m.to(dtype=dtype, device=device) for m in made))
