"""The k nearest codes by Hamming distance, from packed words: by hamming.c, or in NumPy.

Both forms return the same numbers: distances in ascending order, and among equal distances the earlier code first.
"""

import ctypes
import functools
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from dvaepp.kernels import policy

Words = npt.NDArray[np.uint64]
Integers = npt.NDArray[np.int64]
Search = Callable[[Words, Words, int], tuple[Integers, Integers]]

BLOCK = 2**15  # rows that the plain form looks at together: their words and distances fit a core's cache
LONG_LIST = 4096  # for so many neighbours sorting all distances is faster than inserting into a sorted list


def nearest(codes: Words, queries: Words, k: int) -> tuple[Integers, Integers]:
    """Distances and rows of the k nearest of `codes` (n, words) for `queries` (m, words), each (m, k); k <= n."""
    fitting = codes.ndim == queries.ndim == 2 and codes.shape[1] == queries.shape[1] and 1 <= k <= len(codes)
    if not fitting or {codes.dtype, queries.dtype} != {np.dtype(np.uint64)}:
        raise ValueError(
            f"nearest takes uint64 words (n, words) and (m, words) and 1 <= k <= n, got {codes.dtype} {codes.shape}, "
            f"{queries.dtype} {queries.shape} and k = {k}"
        )
    search = _compiled() if k < LONG_LIST and policy.on("hamming") else plain
    return search(np.ascontiguousarray(codes), np.ascontiguousarray(queries), k)


def plain(codes: Words, queries: Words, k: int) -> tuple[Integers, Integers]:
    """The same in NumPy: of each block of rows, those that are nearer than the k-th so far join the list."""
    found = [_nearest_to(codes, query, k) for query in queries]
    distances = np.array([each[0] for each in found], dtype=np.int64).reshape(len(queries), k)
    return distances, np.array([each[1] for each in found], dtype=np.int64).reshape(len(queries), k)


def distances_to(codes: Words, query: Words) -> npt.NDArray[np.uint16]:
    """Hamming distances of all rows to one query, (n,)."""
    total = np.bitwise_count(codes[:, 0] ^ query[0]).astype(np.uint16)
    for word in range(1, codes.shape[1]):
        total += np.bitwise_count(codes[:, word] ^ query[word])
    return total


def _nearest_to(codes: Words, query: Words, k: int) -> tuple[npt.NDArray[Any], Integers]:
    best = np.empty(0, np.uint16)
    rows = np.empty(0, np.int64)
    for start in range(0, len(codes), max(BLOCK, k)):
        found = distances_to(codes[start : start + max(BLOCK, k)], query)
        near = np.flatnonzero(found < best[-1]) if len(best) == k else np.arange(len(found), dtype=np.int64)
        if len(near):
            best, rows = np.concatenate([best, found[near]]), np.concatenate([rows, near + start])
            order = np.argsort(best, kind="stable")[:k]  # rows are in order already, and a stable sort keeps it
            best, rows = best[order], rows[order]
    return best, rows


@functools.cache
def _compiled() -> Search:
    """hamming.c behind arrays."""
    pointer, integer = ctypes.c_void_p, ctypes.c_int64
    function = policy.functions("hamming").dvaepp_hamming
    function.restype = ctypes.c_int
    function.argtypes = [pointer, integer, integer, pointer, integer, integer, pointer, pointer]

    def run(codes: Words, queries: Words, k: int) -> tuple[Integers, Integers]:
        distances, rows = np.empty((len(queries), k), np.int64), np.empty((len(queries), k), np.int64)
        sizes = (*codes.shape, queries.ctypes.data, len(queries), k)
        if not function(codes.ctypes.data, *sizes, distances.ctypes.data, rows.ctypes.data):
            raise MemoryError("no memory for the lists of nearest codes; search for fewer queries at a time")
        return distances, rows

    return run
