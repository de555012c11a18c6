"""Half-sweeps of Gibbs sampling, z = 1[u < sigmoid(logit)], with noise that depends on (key, step, chain, unit) alone.

The noise is Philox4x32-10 (Salmon et al., SC 2011), a pure function of a 64-bit key and a counter. gibbs.c fuses it
with the threshold; `words` and `threshold` are the same in plain torch, for every device. Both give the same random
words, so that a seed means the same chains with and without a compiler, up to the rounding of exp.
"""

import ctypes
import functools
from typing import Any

import torch
from torch import Tensor

from dvaepp.kernels import policy
from dvaepp.kernels.operation import changed, check_dense, check_floats, check_shape, operation

ROUNDS = 10
MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
INCREMENTS = (0x9E3779B9, 0xBB67AE85)
LANES, BLOCK = 16, 64  # element e takes output word (e / 16) % 4 of the counter of lane e % 16 of its block of 64
LOW = 0xFFFFFFFF
MAX_SOURCES = 256  # units of a side that the compiled sweeps take: beyond, their tables leave the nearest cache


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
    """What `threshold_` computes, in plain torch on any device."""
    rows, units = out.shape
    drawn = words(origin * units, rows * units, key, step).view(rows, units)
    if out.dtype == torch.float64:
        u = (drawn.double() + 0.5) * 2.0**-32
    else:
        u = ((drawn >> 1).to(torch.float32) + 0.5) * (2.0**-31 * (1 - 2.0**-24))  # the float just below 2^-31
    logits = acc + delta
    if scale is not None:
        logits *= scale[:, None]
    logits += base
    torch.lt(u * (1 + torch.exp(-logits.float()).to(u.dtype)), 1, out=out)


def available() -> bool:
    """Whether the compiled functions run on this machine's CPU; they take float32 and, for thresholds, float64."""
    return policy.on("gibbs")


def _threshold(
    acc: Tensor, base: Tensor, delta: Tensor, scale: Tensor | None, out: Tensor, key: int, step: int, origin: int
) -> None:
    _check_threshold(acc, base, delta, scale, out, key, step, origin)
    function = _functions()[f"threshold_{'float' if acc.dtype == torch.float32 else 'double'}"]
    scales = None if scale is None else scale.data_ptr()
    read = (acc.data_ptr(), acc.stride(0), base.data_ptr(), delta.data_ptr(), scales)
    function(*read, out.data_ptr(), out.stride(0), *out.shape, origin, key, step, torch.get_num_threads())
    changed(out)


def _check_threshold(
    acc: Tensor, base: Tensor, delta: Tensor, scale: Tensor | None, out: Tensor, key: int, step: int, origin: int
) -> None:
    dtype = torch.float64 if acc.dtype == torch.float64 else torch.float32
    check_floats("threshold", acc, base, delta, scale, out, dtype=dtype)
    check_shape("threshold", "acc", acc.shape, out.shape)
    for name, vector, length in (
        ("base", base, out.shape[1]),
        ("delta", delta, out.shape[1]),
        ("scale", scale, len(out)),
    ):
        if vector is not None:
            check_shape("threshold", name, vector.shape, (length,))
            check_dense("threshold", **{name: vector})
    for name, matrix in (("acc", acc), ("out", out)):
        if matrix.shape[1] > 1 and matrix.stride(1) != 1:
            raise ValueError(f"threshold: a row of {name} must lie together, got strides {matrix.stride()}")


# out = 1[u < sigmoid(base + scale (acc + delta))], where row r has the noise of row origin + r of all chains.
threshold_ = operation(
    "gibbs_threshold_(Tensor acc, Tensor base, Tensor delta, Tensor? scale, Tensor(a!) out, int key, int step, "
    "int origin) -> ()",
    _threshold,
    _check_threshold,
)


def _sweeps(
    left: Tensor,
    right: Tensor,
    weight: Tensor,
    bias_left: Tensor,
    bias_right: Tensor,
    num_sweeps: int,
    key: int,
    step: int,
    origin: int,
) -> None:
    _check_sweeps(left, right, weight, bias_left, bias_right, num_sweeps, key, step, origin)
    pointers = [tensor.data_ptr() for tensor in (left, right, weight, bias_left, bias_right)]
    run = (num_sweeps, origin, key, step, torch.get_num_threads())
    if not _functions()["sweeps"](*pointers, len(left), *weight.shape, *run):
        raise MemoryError(f"no memory for {num_sweeps} Gibbs sweeps of {len(left)} chains")
    changed(left, right)


def _check_sweeps(left: Tensor, right: Tensor, weight: Tensor, bias_left: Tensor, bias_right: Tensor, *_: int) -> None:
    check_floats("sweeps", left, right, weight, bias_left, bias_right)
    check_dense("sweeps", left=left, right=right, weight=weight, bias_left=bias_left, bias_right=bias_right)
    num_left, num_right = weight.shape
    check_shape("sweeps", "left", left.shape, (len(left), num_left))
    check_shape("sweeps", "right", right.shape, (len(left), num_right))
    check_shape("sweeps", "bias_left", bias_left.shape, (num_left,))
    check_shape("sweeps", "bias_right", bias_right.shape, (num_right,))
    if max(num_left, num_right) > MAX_SOURCES:
        raise ValueError(f"sweeps: a side may have at most {MAX_SOURCES} units, got {num_left} and {num_right}")


# Whole sweeps of an RBM, the right side first; half-sweeps are numbered from `step` on, and chains from `origin` on.
sweeps_ = operation(
    "gibbs_sweeps_(Tensor(a!) left, Tensor(b!) right, Tensor weight, Tensor bias_left, Tensor bias_right, "
    "int num_sweeps, int key, int step, int origin) -> ()",
    _sweeps,
    _check_sweeps,
)


@functools.cache
def _functions() -> dict[str, Any]:
    """The functions of gibbs.c by their names without the prefix."""
    library = policy.functions("gibbs")
    pointer, integer, word, number = ctypes.c_void_p, ctypes.c_int64, ctypes.c_uint64, ctypes.c_int
    noise = [integer, word, word, number]  # origin, key, step and the number of threads
    taken = {
        "threshold_float": [pointer, integer, *[pointer] * 4, integer, integer, integer, *noise],
        "threshold_double": [pointer, integer, *[pointer] * 4, integer, integer, integer, *noise],
        "sweeps": [*[pointer] * 5, *[integer] * 4, *noise],
        "words": [pointer, integer, integer, word, word],
    }
    found = {name: getattr(library, f"dvaepp_{name}") for name in taken}
    for name, function in found.items():
        function.argtypes, function.restype = taken[name], number if name == "sweeps" else None
    return found
