"""Which form of a computation runs, for which device, type and size: the only place that decides.

Compiled forms take float32 on a CPU. All other devices and types, and every size that no form is faster for, are left
to plain torch. The thresholds were measured on the models of the paper's Table 4; `python -m benchmarks conv` measures
the whole step.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

TILE = 4  # a map is cut into tiles of 4 x 4 pixels
LANES = 16  # floats of a vector in C
MANY_CHANNELS = 32 * 32  # inputs x outputs from which transforming a map on its way is worth its cost
SMALL_PRODUCT = 480 * 32  # inputs x outputs up to which a core's cache holds a product
LARGE_PRODUCT = 192 * 32  # inputs x outputs from which the library's large products are faster
FEW_PIXELS = 16  # input x output pixels up to which a matrix is never larger than the padded convolution
SMALL_MAP = 256  # input x output pixels up to which a matrix pays with few channels
FEW_CHANNELS = 16 * 16  # inputs x outputs


def plain_floats(tensors: Sequence[Tensor]) -> bool:
    """Whether all are float32 on a CPU, as compiled functions take them."""
    return all(t.dtype is torch.float32 and t.is_cpu for t in tensors)


def tiles(size: int, most: int) -> bool:
    """Whether a square map can be cut into tiles, at most so many to a side."""
    return size % TILE == 0 and size <= most * TILE


def as_matrix(pixels_in: int, pixels_out: int, inputs: int, outputs: int) -> bool:
    """Whether a convolution of a small map is faster as one matrix product."""
    pairs = pixels_in * pixels_out
    return pairs <= FEW_PIXELS or (pairs <= SMALL_MAP and inputs * outputs <= FEW_CHANNELS)


def by_large_products(x: Tensor, weights: Sequence[Tensor]) -> bool:
    """Whether minimal filtering leaves its products to the library, for x (pixels, ..., channels)."""
    inputs, outputs = x.shape[-1], len(weights[0])
    whole = inputs % LANES == 0 and outputs % LANES == 0 and all(len(w) == outputs for w in weights)
    large = inputs * outputs * len(weights) >= LARGE_PRODUCT
    return whole and large and tiles(round(len(x) ** 0.5), 2) and plain_floats((x, *weights))


def in_the_cache(x: Tensor, weights: Sequence[Tensor]) -> bool:
    """Whether minimal filtering keeps everything in a core's cache, for x (pixels, ..., channels)."""
    small = weights[0][:, :, 0, 0].numel() <= SMALL_PRODUCT
    return small and tiles(round(len(x) ** 0.5), 4) and plain_floats((x, *weights))


def in_one_call(kernels: Sequence[Tensor], parameters: Sequence[Tensor]) -> bool:
    """Whether a chain of residual blocks with these 3 x 3 kernels and these parameters is one compiled call."""
    small = all(kernel.numel() <= 9 * SMALL_PRODUCT for kernel in kernels)
    return small and plain_floats(parameters) and all(p.is_contiguous() for p in parameters)
