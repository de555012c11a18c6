"""Formats of the original files, read into uint8 images (n, channels, height, width)."""

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dvaepp.data.base import Pixels

Array = NDArray[Any]


def pixels(array: Array, height: int, width: int, channels: int = 1) -> Pixels:
    """An array of whole numbers in [0, 255], in row-major order, as images."""
    if array.size and array.dtype != np.uint8 and not (array.min() >= 0 and array.max() <= 255):  # also refuses nan
        raise ValueError(f"it has values from {array.min()} to {array.max()}; expected [0, 255]")
    return torch.from_numpy(np.array(array, dtype=np.uint8).reshape(-1, channels, height, width))


def transposed(array: Array) -> Pixels:
    """28x28 images that MATLAB flattened column by column."""
    return pixels(np.swapaxes(array.reshape(-1, 28, 28), 1, 2), 28, 28)


def class_numbers(array: Array) -> Tensor:
    """Labels as int64."""
    if not np.isfinite(array).all():
        raise ValueError("it has labels that are no numbers")
    return torch.from_numpy(array.reshape(-1).astype(np.int64))


def idx(content: bytes) -> Array:
    """MNIST's idx: 00 00 08 <ndim>, ndim big-endian int32 sizes, then bytes."""
    if content[:3] != b"\0\0\x08" or len(content) < 4:
        raise ValueError(f"no idx file of bytes: it starts with {content[:4]!r}")
    ndim = content[3]
    shape = tuple(int(n) for n in np.frombuffer(content, ">u4", count=ndim, offset=4)) if ndim else ()
    return np.frombuffer(content[4 + 4 * ndim :], np.uint8).reshape(shape)


def amat(content: bytes) -> Pixels:
    """Binary 28x28 images, one a line: 784 digits 0/1 separated by single spaces; the digits are the even bytes."""
    return pixels(np.frombuffer(content, np.uint8).reshape(-1, 2 * 784)[:, ::2] - ord("0"), 28, 28)
