"""Stable scalar functions and noise, shared by everything above."""

import ctypes
import functools
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import softplus

from dvaepp.compiled import library
from dvaepp.types import Parameter


def uniform(
    *shape: int,
    generator: torch.Generator | None = None,
    dtype: torch.dtype = torch.float32,
    device: torch.device | str | None = None,
) -> Tensor:
    """Draw ρ = (k + 1/2) / 2²³: uniform on the open interval and symmetric under ρ -> 1 - ρ.

    torch.rand returns exactly 0 about once in 17 million draws; here neither end can occur, and every
    value, like its complement, is exact in float32. Narrower types are drawn as float32. Without `device` the
    draw is on the generator's device, or on the CPU.
    """
    if device is None:
        device = "cpu" if generator is None else generator.device
    k = torch.empty(shape, dtype=working_dtype(dtype), device=device).random_(0, 2**23, generator=generator)
    return k.add_(0.5).mul_(2.0**-23)


def working_dtype(dtype: torch.dtype) -> torch.dtype:
    """The type to compute in: float64 stays, everything narrower (half, bfloat16) becomes float32."""
    return torch.float64 if dtype == torch.float64 else torch.float32


def as_float64(x: Parameter, device: torch.device | str = "cpu") -> Tensor:
    """A number or a tensor as a float64 tensor on `device`, without torch's default type in between."""
    if isinstance(x, Tensor):
        return x.to(device, torch.float64)
    return torch.tensor(x, dtype=torch.float64, device=device)


def log(x: Parameter) -> Parameter:
    """Natural logarithm of a number or a tensor, each in its kind."""
    return torch.log(x) if isinstance(x, Tensor) else math.log(x)


def bernoulli_entropy(logits: Tensor) -> Tensor:
    """H of a Bernoulli variable in nats: -μ log μ - (1-μ) log(1-μ), stable at both ends; 0 for infinite logits."""
    entropy: Tensor = _Entropy.apply(logits)
    return entropy


class _Entropy(torch.autograd.Function):
    """With a = |l| and e = e^-a: H = log(1 + e) + a e / (1 + e) and H' = -l μ (1-μ), in few passes."""

    @staticmethod
    def forward(ctx: Any, logits: Tensor) -> Tensor:
        ctx.save_for_backward(logits)
        magnitude = logits.abs().clamp_max_(1e3)  # beyond, H is 0 in any type, and 0 · ∞ would be NaN
        e = torch.exp(-magnitude)
        return magnitude.mul_(e).div_(e + 1).add_(e.log1p_())

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        (logits,) = ctx.saved_tensors
        logits = logits.clamp(-1e3, 1e3)
        return grad * (-logits * torch.sigmoid(logits) * torch.sigmoid(-logits))


def bernoulli_log_prob(x: Tensor, logits: Tensor) -> Tensor:
    """Σ x l - log(1 + e^l) over the last axis; logits (..., *shape of x) may hold several samples for each x.

    In float32 on a CPU by one compiled pass, within 1e-7 nat per variable; gradients reach the logits only.
    """
    kernel = _log_prob_kernel() if logits.is_cpu and logits.dtype == x.dtype == torch.float32 else None
    if kernel is None or x.requires_grad or logits.shape[logits.dim() - x.dim() :] != x.shape or not logits.numel():
        return (x * logits).sum(-1) - softplus(logits).sum(-1)
    if not (torch.is_grad_enabled() and logits.requires_grad):
        return kernel(x, logits, None)
    value: Tensor = _LogProb.apply(x, logits, kernel)
    return value


class _LogProb(torch.autograd.Function):
    """The derivative x - μ comes out of the same pass as the value."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, logits: Tensor, kernel: "LogProbKernel") -> Tensor:
        residual = torch.empty_like(logits, memory_format=torch.contiguous_format)
        ctx.save_for_backward(x, logits, residual)
        return kernel(x, logits, residual)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[None, Tensor, None]:
        x, logits, residual = ctx.saved_tensors
        if torch.is_grad_enabled():  # somebody will differentiate this gradient
            residual = x - torch.sigmoid(logits)
        return None, residual * grad[..., None], None


LogProbKernel = Callable[[Tensor, Tensor, Tensor | None], Tensor]


@functools.cache
def _log_prob_kernel() -> LogProbKernel | None:
    """`numerics.c` behind tensors, or None where it cannot be had."""
    compiled = library(Path(__file__).with_suffix(".c"))
    if compiled is None:
        return None
    pointer, integer = ctypes.c_void_p, ctypes.c_int64
    function = compiled.dvaepp_log_prob
    function.restype = None
    function.argtypes = [pointer, integer, pointer, pointer, pointer, integer, integer, ctypes.c_int]

    def log_prob(x: Tensor, logits: Tensor, residual: Tensor | None) -> Tensor:
        x, logits = x.contiguous(), logits.contiguous()
        width, out = x.shape[-1], logits.new_empty(logits.shape[:-1])
        slope = None if residual is None else residual.data_ptr()
        rows = (x.numel() // width, logits.data_ptr(), out.data_ptr(), slope, out.numel())
        function(x.data_ptr(), *rows, width, torch.get_num_threads())
        return out

    return log_prob


def saturate(x: Tensor, dtype: torch.dtype) -> Tensor:
    """Cast to `dtype`, replacing what leaves its range by the largest number of the same sign."""
    limit = torch.finfo(dtype).max
    return x.clamp(-limit, limit).to(dtype)


class Evaluation(NamedTuple):
    """A function's value and derivative at the same points."""

    value: Tensor
    derivative: Tensor


def increasing_root(
    function: Callable[[Tensor], Evaluation], low: Tensor, high: Tensor, *, scale: Tensor, max_iterations: int = 200
) -> Tensor:
    """Solve f(x) = 0 elementwise for increasing f with f(low) <= 0 <= f(high), |f| to rounding of `scale`.

    Newton steps where they stay inside the bracket, bisection elsewhere, so that flat stretches and
    infinite slopes cannot throw the iteration out. Meant for float64.
    """
    x = (low + high) / 2
    settled = torch.zeros_like(x, dtype=torch.bool)
    resolution = 4 * torch.finfo(x.dtype).eps
    for _ in range(max_iterations):
        f = function(x)
        below = f.value < 0
        low, high = torch.where(below, x, low), torch.where(below, high, x)
        newton = x - f.value / f.derivative
        # NaN compares false: a zero or infinite slope falls back on bisection.
        inside = (newton >= low) & (newton <= high)
        exact = (f.value.abs() <= resolution * scale) | (high - low <= resolution * x.abs())
        x = torch.where(settled | exact, x, torch.where(inside, newton, (low + high) / 2))
        # Newton squares its error: a step this small leaves nothing to gain after it.
        settled |= exact | (inside & ((f.value / f.derivative).abs() <= 1e-9 * x.abs()))
        if bool(settled.all()):
            break
    return x
