"""Stable scalar functions and noise, shared by everything above."""

import functools
import inspect
import math
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any, NamedTuple, ParamSpec, TypeVar

import torch
from torch import Tensor, nn

from dvaepp.types import Parameter

P = ParamSpec("P")
R = TypeVar("R")
HALF = (torch.float16, torch.bfloat16)
MOST_STEPS = 200  # of a search for a root, which usually ends much earlier


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
    dtype = working_dtype(dtype)
    if torch.compiler.is_compiling():  # a compiler knows `randint` and not `random_`; its noise is its own anyway
        k = torch.randint(0, 2**23, shape, device=device).to(dtype)
    else:
        k = torch.empty(shape, dtype=dtype, device=device).random_(0, 2**23, generator=generator)
    return k.add_(0.5).mul_(2.0**-23)


def working_dtype(dtype: torch.dtype) -> torch.dtype:
    """The type to compute in: float64 stays, everything narrower (half, bfloat16) becomes float32."""
    return torch.float64 if dtype == torch.float64 else torch.float32


def widened(x: Tensor) -> Tensor:
    """x in the type to compute in."""
    return x.to(working_dtype(x.dtype)) if x.is_floating_point() else x


def full_precision(function: Callable[P, R]) -> Callable[P, R]:
    """Decorate a function of tensors, or of lists of them, that half precision would ruin: densities, KLs, energies.

    Inside, `torch.autocast` is off and half precision has become float32; so has the result.
    """

    @functools.wraps(function)
    def run(*args: Any, **kwargs: Any) -> R:
        given = [leaf for value in (*args, *kwargs.values()) for leaf in _leaves(value) if isinstance(leaf, Tensor)]
        kind = given[0].device.type if given else "cpu"
        cast = autocasts(torch.device(kind))
        if not cast and all(tensor.dtype not in HALF for tensor in given):
            return function(*args, **kwargs)
        args = tuple(_widened_leaves(value) for value in args)
        kwargs = {name: _widened_leaves(value) for name, value in kwargs.items()}
        with torch.autocast(kind, enabled=False) if cast else nullcontext():
            return function(*args, **kwargs)

    return run


def _leaves(value: Any) -> Any:
    return value if isinstance(value, (list, tuple)) else (value,)


def _widened_leaves(value: Any) -> Any:
    if isinstance(value, (list, tuple)):
        return [_widened_leaves(each) for each in value]
    return widened(value) if isinstance(value, Tensor) else value


class KeepsFloat32(nn.Module):
    """A module whose parameters and buffers stay float32 where `half()` or `bfloat16()` convert the model around it."""

    def _apply(self, fn: Any, recurse: bool = True) -> Any:
        def keep(tensor: Tensor) -> Tensor:
            changed: Tensor = fn(tensor)
            narrower = changed.dtype in HALF and tensor.dtype not in HALF
            return tensor.to(changed.device) if narrower else changed

        return super()._apply(keep, recurse)


def as_float64(x: Parameter, device: torch.device | str = "cpu") -> Tensor:
    """A tensor as float64 where it lies, or a number as a float64 tensor on `device`.

    The number is filled in there, which unlike `torch.tensor` copies nothing from the host.
    """
    return x.double() if isinstance(x, Tensor) else torch.full((), x, dtype=torch.float64, device=device)


def in_dtype(x: Parameter, dtype: torch.dtype) -> Parameter:
    """A number as it is, a tensor in the type that its neighbours are computed in."""
    return x.to(dtype) if isinstance(x, Tensor) else x


def log(x: Parameter) -> Parameter:
    """Natural logarithm of a number or a tensor, each in its kind."""
    return torch.log(x) if isinstance(x, Tensor) else math.log(x)


def bernoulli_entropy(logits: Tensor) -> Tensor:
    """H of a Bernoulli variable in nats: -μ log μ - (1-μ) log(1-μ), stable at both ends; 0 for infinite logits."""
    return _Entropy.apply(logits)


def known_signature(function: Callable[P, R]) -> Callable[P, R]:
    """Decorate `forward` of an autograd function, whose signature torch otherwise inspects anew in every call.

    A training step calls such functions several times, and an inspection takes as long as a small operation.
    """
    vars(function)["__signature__"] = inspect.signature(function)
    return function


class _Entropy(torch.autograd.Function):
    """With a = |l| and e = e^-a: H = log(1 + e) + a e / (1 + e) and H' = -l μ (1-μ), in few passes."""

    generate_vmap_rule = True

    @staticmethod
    @known_signature
    def forward(logits: Tensor) -> Tensor:
        magnitude = logits.abs().clamp_max_(1e3)  # beyond, H is 0 in any type, and 0 · ∞ would be NaN
        e = torch.exp(-magnitude)
        return magnitude.mul_(e).div_(e + 1).add_(e.log1p_())

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor], output: Tensor) -> None:
        ctx.save_for_backward(inputs[0])

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        (logits,) = ctx.saved_tensors
        logits = logits.clamp(-1e3, 1e3)
        return grad * (-logits * torch.sigmoid(logits) * torch.sigmoid(-logits))


def saturate(x: Tensor, dtype: torch.dtype) -> Tensor:
    """Cast to `dtype`, replacing what leaves its range by the largest number of the same sign."""
    limit = torch.finfo(dtype).max
    return x.clamp(-limit, limit).to(dtype)


def flushed(x: Tensor) -> Tensor:
    """x with 0 for its subnormal numbers, which lie closer to 0 than the type's smallest number of full precision.

    Some processors take a hundred times as long to multiply by such a number: one in fifty among the inputs of a
    network makes its matrix products four times slower.
    """
    return torch.hardshrink(x, torch.finfo(x.dtype).tiny)


class Evaluation(NamedTuple):
    """A function's value and derivative at the same points."""

    value: Tensor
    derivative: Tensor


def increasing_root(function: Callable[[Tensor], Evaluation], low: Tensor, high: Tensor, *, scale: Tensor) -> Tensor:
    """Solve f(x) = 0 elementwise for increasing f with f(low) <= 0 <= f(high), |f| to rounding of `scale`.

    Newton steps where they stay inside the bracket, bisection elsewhere, so that flat stretches and
    infinite slopes cannot throw the iteration out. Meant for float64.
    """
    x = (low + high) / 2
    settled = torch.zeros_like(x, dtype=torch.bool)
    resolution = 4 * torch.finfo(x.dtype).eps
    for _ in range(MOST_STEPS):
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


def autocasts(device: torch.device) -> bool:
    """Whether `torch.autocast` is on for a device; the meta device, where models are counted, knows of none."""
    return device.type != "meta" and torch.is_autocast_enabled(device.type)
