"""Compiled functions as operations of torch, so that autograd, compilers and other devices know what they do.

An operation has a schema, which names the arguments that it changes, a function for tensors on a CPU, and a fake
function, which gives the shapes of the results without touching memory. `torch.library.custom_op` would register the
same, but its calls take a few microseconds longer. Torch's dispatcher takes a tenth of a millisecond for an operation
with a gradient. It is left out where only autograd has to know about the operation, as in a plain training step.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd.graph import increment_version

from dvaepp.kernels.policy import autograd_alone

Size = int | torch.SymInt  # compilers pass symbols for sizes
LIBRARY = torch.library.Library("dvaepp", "DEF")


def operation(
    schema: str,
    run: Callable[..., Any],
    fake: Callable[..., Any],
    *,
    setup_context: Callable[..., None] | None = None,
    backward: Callable[..., Any] | None = None,
) -> Callable[..., Any]:
    """Register `torch.ops.dvaepp.<name>` and return what calls it.

    `backward` is as `torch.library.register_autograd` takes it.
    """
    name = schema.split("(", 1)[0]
    LIBRARY.define(schema)
    LIBRARY.impl(name, run, "CPU")
    torch.library.register_fake(f"dvaepp::{name}", fake, lib=LIBRARY)
    if backward is not None:
        torch.library.register_autograd(f"dvaepp::{name}", backward, setup_context=setup_context, lib=LIBRARY)
    registered: Callable[..., Any] = getattr(torch.ops.dvaepp, name).default
    direct = registered
    if backward is None:
        direct = run
    elif schema.split("->")[1].count("[]") < 2:
        direct = _function(schema, run, setup_context, backward)

    def call(*arguments: Any) -> Any:
        if not autograd_alone(arguments[0]):
            return registered(*arguments)
        return direct(*arguments) if torch.is_grad_enabled() else run(*arguments)

    return call


def _function(
    schema: str, run: Callable[..., Any], setup_context: Callable[..., None] | None, backward: Callable[..., Any]
) -> Callable[..., Any]:
    """The operation as an autograd function, made of the same functions; it may return one list at most.

    An autograd function does not find tensors in lists, so that lists are taken apart on their way in and out.
    """
    name, results = schema.split("(", 1)[0], schema.split("->")[1].split(",")
    is_list = ["[]" in result for result in results]

    def grouped(flat: Sequence[Any]) -> tuple[Any, ...]:
        return _nested(flat, [len(flat) - len(results) + 1 if each else None for each in is_list])

    def forward(ctx: Any, *flat: Any) -> Any:
        *values, sizes = flat
        arguments = _nested(values, sizes)
        output = run(*arguments)
        if setup_context is not None:
            setup_context(ctx, arguments, output)
        return output if len(results) == 1 else tuple(_flat(output))

    def backward_of_flat(ctx: Any, *slopes: Any) -> tuple[Any, ...]:
        found = backward(ctx, *grouped(slopes))
        return (*_flat(found if isinstance(found, tuple) else (found,)), None)

    members = {"forward": staticmethod(forward), "backward": staticmethod(backward_of_flat)}
    function: type[torch.autograd.Function] = type(name, (torch.autograd.Function,), members)

    def call(*arguments: Any) -> Any:
        output = function.apply(*_flat(arguments), _sizes(arguments))
        return output if len(results) == 1 else grouped(output)

    return call


def _sizes(values: Sequence[Any]) -> list[int | None]:
    """The length of each list among some values, None for what is no list."""
    return [len(value) if isinstance(value, list) else None for value in values]


def _flat(values: Sequence[Any]) -> list[Any]:
    """The values, where each list is replaced by its items."""
    return [item for value in values for item in (value if isinstance(value, list) else (value,))]


def _nested(flat: Sequence[Any], sizes: Sequence[int | None]) -> tuple[Any, ...]:
    """The inverse of `_flat`, given the sizes of the lists."""
    items = iter(flat)
    return tuple(next(items) if size is None else [next(items) for _ in range(size)] for size in sizes)


def no_second_derivative(ctx: Any, *_: Any) -> None:
    """The backward pass of an operation that is itself a backward pass."""
    raise RuntimeError(
        "compiled convolutions have no second derivative; DVAEPP_KERNEL=off or a model in float64 takes the plain form"
    )


def check_floats(name: str, *tensors: Tensor | None, dtype: torch.dtype = torch.float32) -> None:
    """Refuse tensors of another type, or on several devices, before any of their memory is read."""
    device = next(t.device for t in tensors if t is not None)
    for t in tensors:
        if t is not None and (t.dtype is not dtype or t.device != device):
            wrong = f"{t.dtype} on {t.device}"
            wanted = str(dtype).removeprefix("torch.")
            raise TypeError(f"{name}: compiled functions take {wanted} on a CPU, all on one device, got {wrong}")


def check_shape(name: str, argument: str, found: Sequence[Any], shape: Sequence[Any]) -> None:
    """Refuse a shape that would let C read or write outside of a tensor."""
    if tuple(found) != tuple(shape):
        raise ValueError(f"{name}: {argument} must have shape {tuple(shape)}, got {tuple(found)}")


def check_dense(name: str, **tensors: Tensor) -> None:
    """Refuse a tensor with gaps if C changes it in place, because a change of a contiguous copy would be lost."""
    for argument, tensor in tensors.items():
        if not tensor.is_contiguous():
            raise ValueError(f"{name}: {argument} must be contiguous, got strides {tensor.stride()}")


def changed(*tensors: Tensor) -> None:
    """Tell autograd that C has written into these tensors."""
    increment_version([t for t in tensors if not t.is_inference()])
