"""The compiled half-sweep, which fuses noise and threshold; samplers also have a plain path in torch."""

import ctypes
import functools
from pathlib import Path

import torch
from torch import Tensor

from dvaepp.kernels.build import library


class Kernel:
    """The functions of `kernel.c`."""

    def __init__(self, library: ctypes.CDLL) -> None:
        pointer, integer, word = ctypes.c_void_p, ctypes.c_int64, ctypes.c_uint64
        self._threshold = {
            torch.float32: library.dvaepp_threshold_float,
            torch.float64: library.dvaepp_threshold_double,
        }
        for function in self._threshold.values():
            function.restype = None
            function.argtypes = [pointer, integer, pointer, pointer, pointer, pointer, integer, integer, integer]
            function.argtypes += [integer, word, word, ctypes.c_int]
        self._sweeps = library.dvaepp_sweeps
        self._sweeps.restype = ctypes.c_int
        self._sweeps.argtypes = [pointer] * 5 + [integer] * 5 + [word, word, ctypes.c_int]
        self._words = library.dvaepp_words
        self._words.restype = None
        self._words.argtypes = [pointer, integer, integer, word, word]

    def threshold(
        self,
        acc: Tensor,
        base: Tensor,
        delta: Tensor,
        scale: Tensor | None,
        out: Tensor,
        key: int,
        step: int,
        threads: int,
        origin: int = 0,
    ) -> None:
        """out = 1[u < sigmoid(base + scale (acc + delta))], rows of one type with unit stride inside a row.

        The type of `acc`, float32 or float64, must be that of all the others: the compiled code reads raw memory. The
        first row takes the noise of row `origin`.
        """
        types = {t.dtype for t in (acc, base, delta, scale, out) if t is not None}
        if len(types) > 1 or acc.dtype not in self._threshold:
            raise TypeError(f"threshold needs tensors of one type, float32 or float64, got {sorted(map(str, types))}")
        scales = None if scale is None else scale.data_ptr()
        self._threshold[acc.dtype](
            acc.data_ptr(),
            acc.stride(0),
            base.data_ptr(),
            delta.data_ptr(),
            scales,
            out.data_ptr(),
            out.stride(0),
            out.shape[0],
            out.shape[1],
            origin,
            key,
            step,
            threads,
        )

    def sweeps(
        self,
        left: Tensor,
        right: Tensor,
        weight: Tensor,
        bias_left: Tensor,
        bias_right: Tensor,
        num_sweeps: int,
        key: int,
        step: int,
        threads: int,
        origin: int = 0,
    ) -> None:
        """Sweeps of an RBM, right side first, on contiguous float32; half-sweeps are numbered from `step` on.

        The first chain takes the noise of chain `origin`.
        """
        wrong = {str(t.dtype) for t in (left, right, weight, bias_left, bias_right) if t.dtype != torch.float32}
        if wrong:
            raise TypeError(f"sweeps needs float32 tensors, got {sorted(wrong)}")
        pointers = [tensor.data_ptr() for tensor in (left, right, weight, bias_left, bias_right)]
        shape = (len(left), left.shape[1], right.shape[1])
        if not self._sweeps(*pointers, *shape, num_sweeps, origin, key, step, threads):
            raise MemoryError(f"no memory for {num_sweeps} Gibbs sweeps of {len(left)} chains")

    def words(self, out: Tensor, block: int, key: int, step: int) -> None:
        """Fill a flat int32 tensor, a multiple of 64 long, with the generator's words from element 64 * block on."""
        self._words(out.data_ptr(), block, out.numel() // 64, key, step)


@functools.cache
def load() -> Kernel | None:
    """The kernel, or None where it cannot be had: see `compiled`."""
    found = library(Path(__file__).with_suffix(".c"))
    return None if found is None else Kernel(found)
