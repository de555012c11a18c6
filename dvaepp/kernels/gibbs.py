"""Half-sweeps of Gibbs sampling, z = 1[u < sigmoid(logit)], with noise that depends on (key, step, chain, unit) alone.

The noise is Philox4x32-10 (Salmon et al., SC 2011), a pure function of a 64-bit key and a counter. gibbs.c fuses it
with the threshold; `words` and `threshold` are the same in plain torch, for every device. Both give the same random
words, so that a seed means the same chains with and without a compiler, up to the rounding of exp.
"""

import ctypes
import functools
from pathlib import Path

import torch
from torch import Tensor

from dvaepp.kernels.build import library

ROUNDS = 10
MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
INCREMENTS = (0x9E3779B9, 0xBB67AE85)
LANES, BLOCK = 16, 64  # element e takes output word (e / 16) % 4 of the counter of lane e % 16 of its block of 64
LOW = 0xFFFFFFFF


def words(first: int, count: int, key: Tensor, step: int) -> Tensor:
    """The random words of elements first ... first + count - 1, as int64 numbers below 2³² on the device of the key.

    Products of two 32-bit words wrap around in int64, and still hold the right bits in both halves.
    """
    block, offset = divmod(first, BLOCK)
    blocks = -(-(offset + count) // BLOCK)
    counter = torch.arange(block * LANES, (block + blocks) * LANES, dtype=torch.int64, device=key.device)
    c0, c1 = counter & LOW, counter >> 32
    c2, c3 = torch.full_like(counter, step & LOW), torch.full_like(counter, step >> 32)
    k0, k1 = key & LOW, key >> 32 & LOW
    for _ in range(ROUNDS):
        product0, product1 = c0 * MULTIPLIERS[0], c2 * MULTIPLIERS[1]
        c0, c2 = (product1 >> 32 & LOW) ^ c1 ^ k0, (product0 >> 32 & LOW) ^ c3 ^ k1
        c1, c3 = product1 & LOW, product0 & LOW
        k0, k1 = k0 + INCREMENTS[0] & LOW, k1 + INCREMENTS[1] & LOW
    made = torch.stack([part.view(blocks, LANES) for part in (c0, c1, c2, c3)], 1).reshape(-1)
    return made[offset : offset + count]


def threshold(
    acc: Tensor,
    base: Tensor,
    delta: Tensor,
    scale: Tensor | None,
    out: Tensor,
    key: Tensor,
    step: int,
    origin: int = 0,
) -> None:
    """`Kernel.threshold` in plain torch, on any device."""
    rows, units = out.shape
    drawn = words(origin * units, rows * units, key, step).view(rows, units)
    if out.dtype == torch.float64:
        u = (drawn.double() + 0.5) * 2.0**-32
    else:
        u = ((drawn >> 1).to(torch.float32) + 0.5) * 2.0**-31
    logits = acc + delta
    if scale is not None:
        logits *= scale[:, None]
    logits += base
    torch.lt(u * (1 + torch.exp(-logits.float())), 1, out=out)


class Kernel:
    """The functions of `gibbs.c`."""

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
