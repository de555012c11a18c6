"""A step of AdaMax over flat buffers: in one pass over them by adamax.c, or in plain torch.

m <- b₁ m + (1-b₁) g,   u <- max(b₂ u, |g| + ε),   θ <- θ + rate · m / u

`all_finite` looks at all gradients before such a step. For a thousand small tensors C is faster at that as well.
"""

import ctypes
import math
from collections.abc import Sequence
from itertools import accumulate

import torch
from torch import Tensor

from dvaepp.kernels import policy
from dvaepp.kernels.build import call
from dvaepp.kernels.operation import changed, check_dense, check_floats, check_shape, operation

PIECE = 1 << 16  # the plain form updates so many elements at a time, because four such arrays fit a core's cache


def update(
    theta: Tensor,
    m: Tensor,
    u: Tensor,
    sizes: Sequence[int],
    gradients: Sequence[Tensor | None],
    *,
    rate: float,
    betas: tuple[float, float],
    epsilon: float,
    weight_decay: float,
) -> None:
    """Change θ, m and u in place. Parameter k has the next sizes[k] elements of each; no gradient counts as zeros."""
    if policy.takes("adamax", (theta, m, u)):
        _adamax(theta, m, u, list(sizes), list(gradients), rate, *betas, epsilon, weight_decay)
        return
    flat = torch.cat(
        [theta.new_zeros(n) if g is None else g.reshape(-1) for g, n in zip(gradients, sizes, strict=True)]
    )
    for t, mean, largest, g in zip(*(buffer.split(PIECE) for buffer in (theta, m, u, flat)), strict=True):
        if weight_decay:
            g.add_(t, alpha=weight_decay)
        mean.lerp_(g, 1 - betas[0])
        torch.maximum(largest.mul_(betas[1]), g.abs_().add_(epsilon), out=largest)
        t.addcdiv_(mean, largest, value=rate)


def _run(
    theta: Tensor,
    m: Tensor,
    u: Tensor,
    sizes: list[int],
    gradients: list[Tensor | None],
    rate: float,
    beta1: float,
    beta2: float,
    epsilon: float,
    weight_decay: float,
) -> None:
    _check(theta, m, u, sizes, gradients)
    job = _AdamaxJob(rate=rate, beta1=beta1, beta2=beta2, epsilon=epsilon, weight_decay=weight_decay)
    job.place(sizes)
    dense = [None if g is None else g.contiguous() for g in gradients]
    call(policy.functions("adamax").dvaepp_adamax, job, theta=theta, m=m, u=u, g=dense)
    changed(theta, m, u)


def _check(theta: Tensor, m: Tensor, u: Tensor, sizes: list[int], gradients: list[Tensor | None], *_: float) -> None:
    check_floats("adamax", theta, m, u, *gradients)
    check_dense("adamax", theta=theta, m=m, u=u)
    for name, buffer in (("theta", theta), ("m", m), ("u", u)):
        check_shape("adamax", name, buffer.shape, (sum(sizes),))
    found = [size if g is None else g.numel() for g, size in zip(gradients, sizes, strict=True)]
    if found != sizes or min(sizes, default=0) < 0:
        raise ValueError(f"adamax: gradients must have sizes {sizes}, got {found}")


_adamax = operation(
    "adamax_(Tensor(a!) theta, Tensor(b!) m, Tensor(c!) u, int[] sizes, Tensor?[] gradients, "
    "float rate, float beta1, float beta2, float epsilon, float weight_decay) -> ()",
    _run,
    _check,
)


def all_finite(tensors: Sequence[Tensor]) -> bool:
    """Whether all numbers are finite.

    The plain form takes the sum of all numbers, which a device returns after a single wait. If the sum is not finite,
    finite terms may have overflowed, so that every tensor is looked at then.
    """
    if policy.takes("adamax", tensors) and all(t.is_contiguous() for t in tensors):
        job, wrong = _AdamaxJob(), ctypes.c_int64(0)
        job.place([t.numel() for t in tensors])
        job.wrong = ctypes.addressof(wrong)
        call(policy.functions("adamax").dvaepp_finite, job, g=tensors)
        return wrong.value == 0
    sums = torch.stack([tensor.sum() for tensor in tensors]).sum()
    return math.isfinite(sums.item()) or all(bool(torch.isfinite(tensor).all()) for tensor in tensors)


class _AdamaxJob(ctypes.Structure):
    """`job` of adamax.c."""

    _fields_ = [
        *((name, ctypes.c_void_p) for name in ("theta", "m", "u", "g", "first", "wrong")),
        ("tensors", ctypes.c_int64),
        *((name, ctypes.c_float) for name in ("rate", "beta1", "beta2", "epsilon", "weight_decay")),
    ]

    def place(self, sizes: Sequence[int]) -> None:
        """Tell C where each tensor begins, in an array that lives as long as the job."""
        self.places = (ctypes.c_int64 * (len(sizes) + 1))(0, *accumulate(sizes))
        self.first, self.tensors = ctypes.addressof(self.places), len(sizes)
