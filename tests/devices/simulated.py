"""A second device without hardware: tensors that lie on the CPU and say that they do not.

A `Remote` tensor wraps a CPU tensor and claims the device "simulated:0". Inside `simulated()` every operation passes
through a dispatch mode, which

- refuses operations on tensors of two devices, as an accelerator does;
- makes new tensors where they were asked for;
- refuses a generator of another device than the numbers that it draws;
- counts copies between the devices, and the answers that the host would have to wait for.

torch cannot make a generator for such a device, so `torch.Generator("simulated")` becomes a CPU generator that
remembers which device was asked for.
"""

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode, return_and_correct_aliasing
from torch.utils._pytree import tree_leaves, tree_map
from torch.utils.backend_registration import _DummyBackendModule, _setup_privateuseone_for_python_backend

NAME = "simulated"
aten = torch.ops.aten
COPIES = {aten._to_copy.default, aten.copy_.default}
WAITS = {  # the host needs the answer, or the size of the result
    aten._local_scalar_dense.default,
    aten.equal.default,
    aten.is_nonzero.default,
    aten.nonzero.default,
    aten.masked_select.default,
    aten._unique2.default,
    aten.unique_dim.default,
    aten.repeat_interleave.Tensor,
}


class _Backend(_DummyBackendModule):
    """`torch.random.fork_rng`, and `opcheck` with it, saves the random state of every registered device.

    This device has none: its generators are those of the CPU.
    """

    def get_rng_state(self, device: object = None) -> Tensor:
        return torch.empty(0, dtype=torch.uint8, device="cpu")

    def set_rng_state(self, state: Tensor, device: object = None) -> None:
        pass


# Now, because autograd counts the devices at the first backward pass of the process.
_setup_privateuseone_for_python_backend(NAME, _Backend())


def device() -> torch.device:
    return torch.device(NAME, 0)


class Remote(Tensor):
    """A tensor of the simulated device, whose numbers are in `held`."""

    held: Tensor

    @staticmethod
    def __new__(cls, held: Tensor) -> "Remote":
        made = torch.Tensor._make_wrapper_subclass(
            cls,
            held.shape,
            strides=held.stride(),
            storage_offset=held.storage_offset(),
            dtype=held.dtype,
            device=device(),
        )
        made.held = held
        return made

    @property
    def data(self) -> Tensor:
        return self.detach()

    @data.setter
    def data(self, other: "Remote") -> None:
        self.held = other.held

    def __repr__(self) -> str:  # type: ignore[override]
        return f"Remote({self.held!r})"

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        raise RuntimeError(f"{func} on {NAME} outside of simulated()")


class RemoteGenerator(torch.Generator):
    """A generator of the simulated device."""

    @property
    def device(self) -> torch.device:
        return device()


class _Asked(type):
    def __instancecheck__(cls, instance: Any) -> bool:
        return isinstance(instance, torch._C.Generator)


class _AnyGenerator(metaclass=_Asked):
    """In place of `torch.Generator`: a generator of the device that is asked for."""

    def __new__(cls, device: Any = "cpu") -> Any:
        elsewhere = torch.device(device).type == NAME
        return RemoteGenerator("cpu") if elsewhere else torch._C.Generator(device)


class Simulation(TorchDispatchMode):
    """Computes on the simulated device, and counts what crosses its border."""

    def __init__(self) -> None:
        super().__init__()
        self.copies: Counter[str] = Counter()
        self.waits: Counter[str] = Counter()

    @property
    def crossings(self) -> int:
        return self.copies.total() + self.waits.total()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        leaves = tree_leaves((args, kwargs))
        tensors = [leaf for leaf in leaves if isinstance(leaf, Tensor)]
        remote = any(isinstance(tensor, Remote) for tensor in tensors)
        target = kwargs.get("device")
        if target is not None and torch.device(target).type == NAME:
            kwargs["device"] = torch.device("cpu")
            goes = True
        else:
            goes = remote and target is None
        if not (remote or goes):
            return func(*args, **kwargs)
        if func in COPIES:
            self._count_copy(func, tensors, remote, goes)
        else:
            _check_devices(func, tensors)
        if func in WAITS or (func is aten.index.Tensor and _by_mask(args)):
            self.waits[str(func)] += 1
        if func is aten._pin_memory.default:
            raise RuntimeError("nothing here pins memory")
        out = func(*tree_map(_held, args), **tree_map(_held, kwargs))
        if func in (aten._local_scalar_dense.default, aten.equal.default, aten.is_nonzero.default):
            return out
        wrapped = tree_map(_wrapped, out) if goes else out
        return return_and_correct_aliasing(func, args, kwargs, wrapped) if goes and remote else wrapped

    def _count_copy(self, func: Any, tensors: list[Tensor], remote: bool, goes: bool) -> None:
        crosses = remote != goes if func is aten._to_copy.default else len({t.device for t in tensors}) > 1
        self.copies[str(func)] += crosses


class _Calls(TorchFunctionMode):
    """Sees calls before they reach the dispatcher, where three things are lost.

    Generators lose their class on the way. `torch.tensor` and `torch.as_tensor` make a tensor on the CPU and copy it
    out of the dispatch mode's sight. `tolist`, which copies to the host first, refuses subclasses.
    """

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        _check_generator(func, args, kwargs)
        if func is Tensor.tolist and isinstance(args[0], Remote):
            return args[0].cpu().tolist()
        target = kwargs.get("device")
        if func in (torch.tensor, torch.as_tensor) and target is not None and torch.device(target).type == NAME:
            if isinstance(args[0], Remote):
                return args[0].to(kwargs.get("dtype") or args[0].dtype)
            return func(*args, **{**kwargs, "device": "cpu"}).to(target)
        return func(*args, **kwargs)


def _held(leaf: Any) -> Any:
    return leaf.held if isinstance(leaf, Remote) else leaf


def _wrapped(leaf: Any) -> Any:
    return Remote(leaf) if isinstance(leaf, Tensor) and not isinstance(leaf, Remote) else leaf


def _check_devices(func: Any, tensors: list[Tensor]) -> None:
    """Single numbers may lie on the CPU, as on an accelerator."""
    if any(not isinstance(t, Remote) and t.dim() > 0 for t in tensors) and any(isinstance(t, Remote) for t in tensors):
        raise RuntimeError(f"{func}: expected all tensors on one device, got {[str(t.device) for t in tensors]}")


def _check_generator(func: Any, args: Any, kwargs: dict[str, Any]) -> None:
    """A generator draws numbers of its own device."""
    leaves = tree_leaves((args, kwargs))
    places = [kwargs.get("device"), *(leaf.device for leaf in leaves if isinstance(leaf, Tensor)), "cpu"]
    place = torch.device(next(place for place in places if place is not None))
    for leaf in leaves:
        if isinstance(leaf, torch._C.Generator) and leaf.device.type != place.type:
            raise RuntimeError(f"{func}: expected a generator of {place}, got one of {leaf.device}")


def _by_mask(args: Any) -> bool:
    return any(index is not None and index.dtype == torch.bool for index in args[1])


@contextmanager
def simulated() -> Iterator[Simulation]:
    """Inside, the simulated device computes."""
    original = torch.Generator
    torch.Generator = _AnyGenerator  # type: ignore[misc]
    try:
        with _Calls(), Simulation() as simulation:
            yield simulation
    finally:
        torch.Generator = original  # type: ignore[misc]
