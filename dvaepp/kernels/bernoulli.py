"""log p(x) of Bernoulli variables in one pass over float32 on a CPU (bernoulli.c), within 1e-7 nat per variable."""

import ctypes
import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import softplus

from dvaepp.kernels.build import library
from dvaepp.kernels.policy import plain_floats

Kernel = Callable[[Tensor, Tensor, Tensor | None], Tensor]


def log_prob(x: Tensor, logits: Tensor) -> Tensor:
    """Σ x l - log(1 + e^l) over the last axis; logits (..., *shape of x) may hold several samples for each x.

    In the compiled form gradients reach the logits only, which is why an x that requires one takes the plain form.
    """
    kernel = _kernel() if plain_floats((x, logits)) else None
    if kernel is None or x.requires_grad or logits.shape[logits.dim() - x.dim() :] != x.shape or not logits.numel():
        return (x * logits).sum(-1) - softplus(logits).sum(-1)
    if not (torch.is_grad_enabled() and logits.requires_grad):
        return kernel(x, logits, None)
    value: Tensor = _LogProb.apply(x, logits, kernel)
    return value


class _LogProb(torch.autograd.Function):
    """The derivative x - μ comes out of the same pass as the value."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, logits: Tensor, kernel: Kernel) -> Tensor:
        residual = torch.empty_like(logits, memory_format=torch.contiguous_format)
        ctx.save_for_backward(x, logits, residual)
        return kernel(x, logits, residual)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[None, Tensor, None]:
        x, logits, residual = ctx.saved_tensors
        if torch.is_grad_enabled():  # somebody will differentiate this gradient
            residual = x - torch.sigmoid(logits)
        return None, residual * grad[..., None], None


@functools.cache
def _kernel() -> Kernel | None:
    """bernoulli.c behind tensors, or None where it cannot be had."""
    compiled = library(Path(__file__).with_suffix(".c"))
    if compiled is None:
        return None
    pointer, integer = ctypes.c_void_p, ctypes.c_int64
    function = compiled.dvaepp_log_prob
    function.restype = None
    function.argtypes = [pointer, integer, pointer, pointer, pointer, integer, integer, ctypes.c_int]

    def run(x: Tensor, logits: Tensor, residual: Tensor | None) -> Tensor:
        x, logits = x.contiguous(), logits.contiguous()
        width, out = x.shape[-1], logits.new_empty(logits.shape[:-1])
        slope = None if residual is None else residual.data_ptr()
        rows = (x.numel() // width, logits.data_ptr(), out.data_ptr(), slope, out.numel())
        function(x.data_ptr(), *rows, width, torch.get_num_threads())
        return out

    return run
