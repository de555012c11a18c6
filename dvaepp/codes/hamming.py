"""Exact nearest neighbours among binary codes.

A code of a model is a row of bits; images that the model finds alike have codes that differ in few of them. A million
codes of 64 bits take 8 MB, and one pass over them answers a query, so that no approximate structure is needed.

The second stage uses what a query knows beyond its bits, its posterior means μ_i = q(z_i = 1|x). The mean Hamming
distance between a draw of the query's code and a stored code b,

    E_q[Σ_i |z_i - b_i|] = Σ_i μ_i + Σ_i b_i (1 - 2 μ_i),

takes an uncertain unit for less than a certain one, and breaks the many ties of short codes. Stored codes stay bits.
"""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from dvaepp.codes.packing import Words, as_bits, num_words, pack, unpack
from dvaepp.errors import UsageError
from dvaepp.kernels import hamming

Floats = npt.NDArray[np.float64]
Integers = npt.NDArray[np.int64]

MOST_BITS = 2**16 - 1  # distances are counted in 16 bits
QUERIES_AT_ONCE = 1024
SHARE = 2**25  # words that a thread compares at least; with less, starting it takes longer than what it saves


class Neighbours(NamedTuple):
    """For every query the k nearest codes, nearest first: distances and row numbers, each (queries, k).

    Choose it by field, or unpack it: distances, then indices.

    >>> index = HammingIndex(4)
    >>> index.add([[0, 0, 0, 1], [1, 1, 1, 1]])
    >>> index.search([[1, 1, 1, 0]], k=1).indices.tolist()
    [[1]]
    """

    distances: npt.NDArray[Any]
    indices: Integers


class HammingIndex:
    """Codes of `num_bits` bits, to be searched for the nearest to a query.

    Choose it for up to some tens of millions of codes, where exact search takes milliseconds.

    >>> index = HammingIndex(64)
    >>> index.add(torch.zeros(10, 64).bool())  # model.encode(images).bool()
    >>> distances, indices = index.search(torch.ones(1, 64).bool(), k=3)
    >>> distances.tolist()
    [[64, 64, 64]]
    """

    def __init__(self, num_bits: int) -> None:
        if not 1 <= num_bits <= MOST_BITS:
            raise UsageError(f"num_bits must be from 1 to {MOST_BITS}, got {num_bits}")
        self.num_bits = num_bits
        self._parts: list[Words] = [np.empty((0, num_words(num_bits)), np.uint64)]

    def __len__(self) -> int:
        return sum(map(len, self._parts))

    def __repr__(self) -> str:
        return f"HammingIndex({self.num_bits}), {len(self)} codes"

    @property
    def words(self) -> Words:
        """All codes packed, (codes, words); see `packing`."""
        if len(self._parts) > 1:
            self._parts = [np.concatenate(self._parts)]
        return self._parts[0]

    def add(self, bits: Any) -> None:
        """Append codes (n, num_bits) of booleans or zeros and ones; they get the next row numbers."""
        self.add_words(pack(as_bits(bits, self.num_bits)))

    def add_words(self, words: Words) -> None:
        """Append codes that are packed already, (n, words) as of `packing.pack`."""
        if words.dtype != np.uint64 or words.shape[1:] != (num_words(self.num_bits),):
            raise UsageError(
                f"words must be uint64 of shape (codes, {num_words(self.num_bits)}), got {words.dtype} {words.shape}"
            )
        self._parts = [part for part in (*self._parts, words) if len(part)] or [words]

    def search(self, bits: Any, k: int, threads: int = 1) -> Neighbours:
        """The k nearest codes of each query, bits (queries, num_bits); of equally near ones the earlier row.

        Of several threads each takes a share of the codes, as many as the work is worth; the answer is the same.
        """
        queries = pack(as_bits(bits, self.num_bits))
        self._check(k, threads)
        starts = range(0, len(queries), QUERIES_AT_ONCE)
        parts = [self._nearest(queries[i : i + QUERIES_AT_ONCE], k, threads) for i in starts]
        if not parts:
            return Neighbours(np.empty((0, k), np.int64), np.empty((0, k), np.int64))
        return Neighbours(np.concatenate([d for d, _ in parts]), np.concatenate([i for _, i in parts]))

    def rerank(self, mu: Any, indices: Any, k: int | None = None) -> Neighbours:
        """Order candidates of a search (queries, c) by their mean Hamming distance to the posterior means `mu`.

        `mu` is (queries, num_bits) in [0, 1]. The k best of them are returned, or all c.
        """
        mu, indices = np.asarray(mu, np.float64), np.asarray(indices)
        self._check_candidates(mu, indices, k)
        found = np.empty(indices.shape)
        for query, rows in enumerate(indices):
            found[query] = mu[query].sum() + unpack(self.words[rows], self.num_bits) @ (1 - 2 * mu[query])
        order = np.argsort(found, 1, kind="stable")[:, :k]
        return Neighbours(np.take_along_axis(found, order, 1), np.take_along_axis(indices, order, 1))

    def save(self, path: Path | str) -> None:
        """Write the codes to an .npz file that `load` reads or maps; nothing in it is pickled."""
        from dvaepp.codes.index_file import IndexFile, write

        write(Path(path), IndexFile(self))

    @classmethod
    def load(cls, path: Path | str, *, memory_map: bool = False) -> "HammingIndex":
        """Read an index; with `memory_map` its codes stay on the disk until they are searched."""
        from dvaepp.codes.index_file import read

        return read(Path(path), memory_map=memory_map).index

    def _check(self, k: int, threads: int) -> None:
        if not 1 <= k <= len(self):
            raise UsageError(f"k must be from 1 to the {len(self)} codes of the index, got {k}")
        if threads < 1:
            raise UsageError(f"threads must be at least 1, got {threads}")

    def _check_candidates(self, mu: Floats, indices: npt.NDArray[Any], k: int | None) -> None:
        if indices.ndim != 2 or indices.dtype.kind not in "iu" or not ((indices >= 0) & (indices < len(self))).all():
            raise UsageError(f"indices must be rows of the index, (queries, candidates), from 0 to {len(self) - 1}")
        if mu.shape != (len(indices), self.num_bits):
            raise UsageError(f"mu must have shape ({len(indices)}, {self.num_bits}), got {mu.shape}")
        if not ((mu >= 0) & (mu <= 1)).all():
            raise UsageError("mu must be probabilities, from 0 to 1; give posterior means, not logits")
        if k is not None and not 1 <= k <= indices.shape[1]:
            raise UsageError(f"k must be from 1 to the {indices.shape[1]} candidates, got {k}")

    def _nearest(self, queries: Words, k: int, threads: int) -> tuple[Integers, Integers]:
        """The nearest of the neighbours that each thread finds in its share of the codes.

        Shares are in the order of rows, so that of equally near codes the earlier row still comes first.
        """
        words = self.words
        worth = 1 + words.size * len(queries) // SHARE
        bounds = np.linspace(0, len(self), min(threads, worth, len(self)) + 1).astype(int)

        def share(start: int, stop: int) -> tuple[Integers, Integers]:
            distances, rows = hamming.nearest(words[start:stop], queries, min(k, stop - start))
            return distances, rows + start

        parts = _in_threads(share, bounds)
        if len(parts) == 1:
            return parts[0]
        distances, rows = np.concatenate([d for d, _ in parts], 1), np.concatenate([i for _, i in parts], 1)
        order = np.argsort(distances, 1, kind="stable")[:, :k]
        return np.take_along_axis(distances, order, 1), np.take_along_axis(rows, order, 1)


Part = tuple[Integers, Integers]


def _in_threads(share: Callable[[int, int], Part], bounds: npt.NDArray[Any]) -> list[Part]:
    spans = list(zip(bounds[:-1].tolist(), bounds[1:].tolist(), strict=True))
    if len(spans) == 1:
        return [share(*spans[0])]
    with ThreadPoolExecutor(len(spans)) as pool:
        return list(pool.map(lambda span: share(*span), spans))
