"""Matrix products of float32 by oneDNN, on processors where the library behind `torch.mm` holds back.

The wheels of torch bring two libraries for matrix products. `torch.mm` and `linear` ask MKL, which uses the vectors of
512 bits on Intel's processors only; oneDNN, which torch asks for convolutions, uses them wherever there are any. On an
AMD processor with AVX-512 its products take half the time. Everywhere else, and for products too small to pay for the
call, `linear` here is torch's own; so it is inside `torch.compile` and `torch.func`. It is an autograd function rather
than an operation of its own, which would cost a good part of what it saves.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from dvaepp.kernels import policy

_SETTINGS: tuple[str, list[float], str] = ("none", [], "")  # nothing is applied to the product


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """x weightᵀ + bias for x (..., inputs) and weight (outputs, inputs), as `torch.nn.functional.linear`.

    The bias may also be a matrix with a row for each row of x (rows, inputs): the sum of several products.
    """
    if policy.by_onednn(x, weight):
        return _by_onednn(x, weight, bias)
    if bias is not None and bias.dim() > 1:
        return torch.addmm(bias, x, weight.t())
    return functional.linear(x, weight, bias)


def _by_onednn(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    rows = x if x.dim() == 2 else x.reshape(-1, x.shape[-1])
    if torch.is_grad_enabled() and any(t is not None and t.requires_grad for t in (x, weight, bias)):
        out: Tensor = _Linear.apply(rows, weight, bias)
    else:
        out = _run(rows, weight, bias)
    return out if x.dim() == 2 else out.reshape(*x.shape[:-1], -1)


def side_by_side(inputs: Sequence[Tensor], weight: Tensor, bias: Tensor | None) -> Tensor:
    """`linear` of inputs (rows, width) that stand side by side, each with its own columns of the weight.

    The first input may have fewer rows than the others, which then hold several samples for each of its rows.
    """
    if policy.autograd_alone(weight):
        out: Tensor = _SideBySide.apply(weight, bias, *inputs)
        return out
    return _sum_of_products(inputs, weight, bias)


def _sum_of_products(inputs: Sequence[Tensor], weight: Tensor, bias: Tensor | None) -> Tensor:
    (first, columns), *others = zip(inputs, _columns(weight, inputs), strict=True)
    out = linear(first, columns, bias)
    rows = len(others[0][0])
    out = out if len(out) == rows else out.repeat(rows // len(out), 1)
    for x, columns in others:
        out = linear(x, columns, out)
    return out


def _columns(weight: Tensor, inputs: Sequence[Tensor]) -> tuple[Tensor, ...]:
    return weight.split([x.shape[-1] for x in inputs], 1)


class _SideBySide(torch.autograd.Function):
    """`_sum_of_products`, whose backward pass writes the gradient of each piece of the weight to its place at once.

    Autograd would make a gradient for each piece, and then copy all of them into one.
    """

    @staticmethod
    def forward(ctx: Any, weight: Tensor, bias: Tensor | None, *inputs: Tensor) -> Tensor:
        ctx.save_for_backward(weight, *inputs)
        return _sum_of_products(inputs, weight, bias)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        weight, *inputs = ctx.saved_tensors
        needs_weight, needs_bias, *needs = ctx.needs_input_grad
        of_first = grad.unflatten(0, (-1, len(inputs[0]))).sum(0) if len(inputs[0]) < len(grad) else grad
        slopes = [of_first, *(grad for _ in inputs[1:])]
        to_weight = _weight_gradient(slopes, weight, inputs) if needs_weight else None
        parts = zip(slopes, _columns(weight, inputs), needs, strict=True)
        to_inputs = [linear(slope, columns.t()) if need else None for slope, columns, need in parts]
        return to_weight, grad.sum(0) if needs_bias else None, *to_inputs


def _weight_gradient(slopes: Sequence[Tensor], weight: Tensor, inputs: Sequence[Tensor]) -> Tensor:
    if torch.is_grad_enabled():  # it will be differentiated again, which forbids changes in place
        return torch.cat([slope.t() @ x for slope, x in zip(slopes, inputs, strict=True)], 1)
    out = torch.empty_like(weight)
    for slope, x, part in zip(slopes, inputs, _columns(out, inputs), strict=True):
        if policy.by_onednn(slope.t(), x.t()):
            part.copy_(_product(slope.t(), x.t()))
        else:
            torch.mm(slope.t(), x, out=part)
    return out


class _Linear(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        ctx.save_for_backward(x, weight)
        ctx.sum_to_bias = bias is not None and bias.dim() == 1
        return _run(x, weight, bias)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
        x, weight = ctx.saved_tensors
        # For a gradient that will be differentiated again, torch's own products, whose derivatives autograd knows.
        product = _plain_product if torch.is_grad_enabled() else _product
        needs_x, needs_weight, needs_bias = ctx.needs_input_grad
        to_x = product(grad, weight.t()) if needs_x else None
        to_weight = product(grad.t(), x.t()) if needs_weight else None
        to_bias = (grad.sum(0) if ctx.sum_to_bias else grad) if needs_bias else None
        return to_x, to_weight, to_bias


def product(a: Tensor, b: Tensor) -> Tensor:
    """a b by oneDNN, whatever the sizes and without a gradient."""
    return _product(a, b.t())


def _run(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    return _product(x, weight, bias) if bias is None or bias.dim() == 1 else _product(x, weight).add_(bias)


def _plain_product(a: Tensor, b: Tensor) -> Tensor:
    return a @ b.t()


def _product(a: Tensor, b: Tensor, bias: Tensor | None = None) -> Tensor:
    """a bᵀ, plus a bias for each column."""
    out: Tensor = torch.ops.mkldnn._linear_pointwise(_without_gaps(a), _without_gaps(b), bias, *_SETTINGS)
    return out


def _without_gaps(matrix: Tensor) -> Tensor:
    """The matrix, or a copy where rows have gaps between them, such as some columns of a larger matrix.

    oneDNN takes rows or columns that follow each other; for anything else a form runs that is a thousand times slower.
    """
    return matrix if matrix.is_contiguous() or matrix.t().is_contiguous() else matrix.contiguous()
