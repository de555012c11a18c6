"""A step of AdaMax over flat buffers in one pass on a CPU (adamax.c), or in pieces that stay in the cache.

m <- b₁ m + (1-b₁) g,   u <- max(b₂ u, |g| + ε),   θ <- θ + rate · m / u
"""

import ctypes
import functools
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor

from dvaepp.kernels.build import call, library
from dvaepp.kernels.policy import plain_floats

PIECE = 1 << 16  # elements updated together: four arrays of them fit a core's cache


def update(
    theta: Tensor,
    m: Tensor,
    u: Tensor,
    offsets: Tensor,
    gradients: Sequence[Tensor | None],
    *,
    rate: float,
    betas: tuple[float, float],
    epsilon: float,
    weight_decay: float,
) -> None:
    """Change θ, m and u in place; parameter k lies from offsets[k] to offsets[k + 1]; a missing gradient is zeros."""
    compiled = _compiled()
    if compiled is not None and plain_floats((theta, m, u)):
        job = _Job(tensors=len(gradients), rate=rate, epsilon=epsilon, weight_decay=weight_decay)
        job.beta1, job.beta2 = betas
        dense = [None if g is None else g.contiguous() for g in gradients]
        call(compiled.dvaepp_adamax, job, theta=theta, m=m, u=u, g=dense, first=offsets)
        return
    sizes = offsets.diff().tolist()
    flat = torch.cat(
        [theta.new_zeros(n) if g is None else g.reshape(-1) for g, n in zip(gradients, sizes, strict=True)]
    )
    for t, mean, largest, g in zip(*(buffer.split(PIECE) for buffer in (theta, m, u, flat)), strict=True):
        if weight_decay:
            g.add_(t, alpha=weight_decay)
        mean.lerp_(g, 1 - betas[0])
        torch.maximum(largest.mul_(betas[1]), g.abs_().add_(epsilon), out=largest)
        t.addcdiv_(mean, largest, value=rate)


class _Job(ctypes.Structure):
    """`job` of adamax.c."""

    _fields_ = [
        *((name, ctypes.c_void_p) for name in ("theta", "m", "u", "g", "first")),
        ("tensors", ctypes.c_int64),
        *((name, ctypes.c_float) for name in ("rate", "beta1", "beta2", "epsilon", "weight_decay")),
    ]


@functools.cache
def _compiled() -> ctypes.CDLL | None:
    return library(Path(__file__).with_suffix(".c"))
