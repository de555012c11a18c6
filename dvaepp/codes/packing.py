"""Codes as rows of 64-bit words: 64 bits take the place of two floats."""

from typing import Any

import numpy as np
import numpy.typing as npt

from dvaepp.errors import UsageError

Bits = npt.NDArray[np.bool_]
Words = npt.NDArray[np.uint64]

WORD = 64


def num_words(num_bits: int) -> int:
    return -(-num_bits // WORD)


def as_bits(bits: Any, num_bits: int) -> Bits:
    """Codes (n, num_bits) as booleans; zeros and ones of any type are taken, anything else is refused."""
    array = np.asarray(bits)
    if array.ndim != 2 or array.shape[1] != num_bits:
        raise UsageError(f"bits must have shape (codes, {num_bits}), got {array.shape}")
    if array.dtype.kind not in "biuf":
        raise UsageError(f"bits must be booleans, or numbers 0 and 1, got values of type {array.dtype}")
    if array.dtype != np.bool_ and not ((array == 0) | (array == 1)).all():
        wrong = array[(array != 0) & (array != 1)].flat[0]
        raise UsageError(f"bits must be 0 or 1, got {wrong}; threshold probabilities at 0.5")
    return array.astype(np.bool_)


def pack(bits: Bits) -> Words:
    """(n, num_bits) booleans as (n, words); bit i is bit i % 64 of word i // 64, and what is left over is zero."""
    count, num_bits = bits.shape
    padded = np.zeros((count, num_words(num_bits) * WORD // 8), np.uint8)
    packed = np.packbits(bits, axis=1, bitorder="little")
    padded[:, : packed.shape[1]] = packed
    return padded.view("<u8").astype(np.uint64, copy=False)


def unpack(words: Words, num_bits: int) -> Bits:
    """The inverse of `pack`."""
    bytes_ = np.ascontiguousarray(words, "<u8").view(np.uint8)
    return np.unpackbits(bytes_, axis=1, count=num_bits, bitorder="little").astype(np.bool_)
