"""Formats of the original files, read into uint8 images (n, channels, height, width)."""

from typing import Any

import numpy as np
import torch
from jaxtyping import UInt8
from numpy.typing import NDArray
from torch import Tensor

Array = NDArray[Any]
Pixels = UInt8[Tensor, "_ channels height width"]


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


def amat(content: bytes) -> Pixels:
    """Binary 28x28 images, one a line: 784 digits 0/1 separated by single spaces; the digits are the even bytes."""
    return pixels(np.frombuffer(content, np.uint8).reshape(-1, 2 * 784)[:, ::2] - ord("0"), 28, 28)
