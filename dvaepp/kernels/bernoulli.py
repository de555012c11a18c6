"""log p(x) of Bernoulli variables: by bernoulli.c, which reads them once, or in plain torch.

The two forms differ by at most 1e-7 nat for each variable.
"""

import ctypes
import functools
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import softplus

from dvaepp.kernels import policy
from dvaepp.kernels.operation import check_floats, check_shape, operation


def log_prob(x: Tensor, logits: Tensor) -> Tensor:
    """Σ x l - log(1 + e^l) over the last axis; logits (..., *shape of x) may hold several samples for each x.

    Half precision is computed in float32, which the sum over many variables needs.
    """
    x, logits = (t.to(torch.promote_types(t.dtype, torch.float32)) for t in (x, logits))
    same = logits.shape[logits.dim() - x.dim() :] == x.shape and logits.numel() > 0
    if not same or not policy.takes("bernoulli", (x, logits)):
        return (x * logits).sum(-1) - softplus(logits).sum(-1)
    slope = torch.is_grad_enabled() and logits.requires_grad
    value: Tensor = _log_prob(x, logits, slope)[0]
    return value


def _run(x: Tensor, logits: Tensor, slope: bool) -> tuple[Tensor, Tensor]:
    """log p(x) and, if `slope` asks for it, its derivative x - μ, which the same pass gives."""
    value, residual = _fake(x, logits, slope)
    x, logits = x.contiguous(), logits.contiguous()
    width = x.shape[-1]
    written = residual.data_ptr() if slope else None
    rows = (x.numel() // width, logits.data_ptr(), value.data_ptr(), written, value.numel())
    _function()(x.data_ptr(), *rows, width, torch.get_num_threads())
    return value, residual


def _fake(x: Tensor, logits: Tensor, slope: bool) -> tuple[Tensor, Tensor]:
    check_floats("log_prob", x, logits)
    check_shape("log_prob", "the end of logits", logits.shape[logits.dim() - x.dim() :], x.shape)
    return logits.new_empty(logits.shape[:-1]), logits.new_empty(logits.shape if slope else (0,))


def _setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    ctx.save_for_backward(*inputs[:2], output[1])
    ctx.mark_non_differentiable(output[1])
    ctx.set_materialize_grads(False)


def _backward(ctx: Any, grad: Tensor | None, _: None) -> tuple[Tensor | None, Tensor | None, None]:
    x, logits, residual = ctx.saved_tensors
    to_x = to_logits = None
    if grad is not None and ctx.needs_input_grad[0]:
        to_x = (grad[..., None] * logits).sum_to_size(x.shape)
    if grad is not None and ctx.needs_input_grad[1]:
        if torch.is_grad_enabled() or not residual.numel():  # a second derivative needs x - μ as an expression of torch
            residual = x - torch.sigmoid(logits)
        to_logits = residual * grad[..., None]
    return to_x, to_logits, None


_log_prob = operation(
    "bernoulli_log_prob(Tensor x, Tensor logits, bool slope) -> (Tensor, Tensor)",
    _run,
    _fake,
    setup_context=_setup_context,
    backward=_backward,
)


@functools.cache
def _function() -> Any:
    pointer, integer = ctypes.c_void_p, ctypes.c_int64
    function = policy.functions("bernoulli").dvaepp_log_prob
    function.restype = None
    function.argtypes = [pointer, integer, pointer, pointer, pointer, integer, integer, ctypes.c_int]
    return function
