"""Every compiled function as an operation of torch: schema, fake, autograd, and refusal of what C could not read."""

import subprocess
import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.library import opcheck
from torch.utils._python_dispatch import TorchDispatchMode

from dvaepp.errors import UsageError
from dvaepp.kernels import adamax, bernoulli, gibbs, normal, policy, residual_chain, winograd
from dvaepp.networks.residual import Residual

Case = tuple[Callable[..., Any], tuple[Any, ...]]

needs_a_compiler = pytest.mark.skipif(
    not all(policy.on(kernel) for kernel, source in policy.KERNELS.items() if source is not None),
    reason="no C compiler here, or DVAEPP_KERNEL is set",
)


def _random(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def _bits(*shape: int) -> Tensor:
    return (_random(*shape) > 0).float()


def _leaves(*shape: int, count: int = 2) -> list[Tensor]:
    return [_random(*shape, seed=k).requires_grad_() for k in range(count)]


def _convolution() -> tuple[Any, ...]:
    return _random(16, 2, 3, 20).requires_grad_(), _leaves(5, 20, 3, 3), _leaves(5)


def _chain(blocks: int = 2) -> tuple[Any, ...]:
    g = torch.Generator().manual_seed(0)
    networks = [[Residual(a, b, generator=g) for a, b in ((8, 32), (32, 16))[:blocks]] for _ in range(2)]
    layers = residual_chain.in_groups([residual_chain.layers_of(network) for network in networks])
    first, skip = _leaves(16, 2, 3, 32)
    return first, skip, [p for layer in layers for p in layer.parameters], residual_chain._letters(layers), False


def _registered(module: ModuleType, name: str) -> Callable[..., Any]:
    """The operation as torch knows it, which its module registers when it is imported."""
    operation: Callable[..., Any] = getattr(torch.ops.dvaepp, name).default
    assert module.__name__.startswith("dvaepp.kernels.")
    return operation


def _forward(name: str) -> Case:
    cases: dict[str, Callable[[], Case]] = {
        "log_prob": lambda: (
            _registered(bernoulli, "bernoulli_log_prob"),
            (_bits(3, 7), _random(2, 3, 7).requires_grad_(), True),
        ),
        "log_prob, no slope": lambda: (
            _registered(bernoulli, "bernoulli_log_prob"),
            (_bits(3, 7), _random(2, 3, 7), False),
        ),
        "threshold": lambda: (_registered(gibbs, "gibbs_threshold_"), (*_threshold(torch.float32), 5, 1, 0)),
        "threshold, float64": lambda: (_registered(gibbs, "gibbs_threshold_"), (*_threshold(torch.float64), 5, 1, 0)),
        "sweeps": lambda: (_registered(gibbs, "gibbs_sweeps_"), (*_rbm(), 3, 5, 1, 0)),
        "adamax": lambda: (_registered(adamax, "adamax_"), (*_buffers(), 0.1, 0.9, 0.999, 1e-8, 0.01)),
        "convolution": lambda: (_registered(winograd, "convolve_after_elu"), _convolution()),
        "convolution, no bias": lambda: (_registered(winograd, "convolve_after_elu"), (*_convolution()[:2], [])),
        "bound": lambda: (_registered(normal, "normal_bound"), (*_leaves(3, 4, 2, 2, count=1), 5.0)),
        "sample": lambda: (
            _registered(normal, "normal_sample"),
            (*_leaves(3, 4, 2, 2, count=1), _random(3, 2, 2, 2, seed=1)),
        ),
        "kl": lambda: (_registered(normal, "normal_kl"), tuple(_leaves(3, 4, 2, 2))),
        "chain": lambda: (_registered(residual_chain, "residual_chain"), _chain()),
        "chain of one block": lambda: (_registered(residual_chain, "residual_chain"), _chain(1)),
    }
    return cases[name]()


def _threshold(dtype: torch.dtype) -> tuple[Tensor, ...]:
    return tuple(t.to(dtype) for t in (_random(5, 7), _random(7), _random(7, seed=1), _random(5).abs(), _bits(5, 7)))


def _rbm() -> tuple[Tensor, ...]:
    return _bits(5, 7), _bits(5, 4), _random(7, 4), _random(7), _random(4)


def _buffers() -> tuple[Any, ...]:
    return _random(10), _random(10, seed=1), _random(10, seed=2).abs(), [4, 6], [_random(2, 2), None]


def _backward(name: str) -> Case:
    """The operation behind a gradient, on what its forward pass gave."""
    operation, arguments = _forward(name)
    if name in ("bound", "sample", "kl"):
        result = operation(*arguments)
        kept = [result, *arguments[1:]] if name == "bound" else arguments
        return _registered(normal, f"normal_{name}_backward"), (torch.ones_like(result), *map(_detached, kept))
    result, *kept = operation(*arguments)
    dy, rest = torch.ones_like(result), [_detached(a) for a in kept]
    if name == "chain":
        return _registered(residual_chain, "residual_chain_backward"), (
            dy,
            *rest,
            _detached(arguments[2]),
            *arguments[3:],
        )
    return _registered(winograd, "convolve_after_elu_backward"), (dy, *rest, _detached(arguments[1]), True, True)


def _detached(value: Any) -> Any:
    if isinstance(value, list):
        return [t.detach() for t in value]
    return value.detach() if isinstance(value, Tensor) else value


NAMES = ["log_prob", "log_prob, no slope", "threshold", "threshold, float64", "sweeps", "adamax"]
NAMES += ["convolution", "convolution, no bias", "chain", "chain of one block", "bound", "sample", "kl"]


@needs_a_compiler
@pytest.mark.parametrize("name", NAMES)
def test_torch_finds_nothing_wrong_with_an_operation(name: str) -> None:
    """Its schema names all that it changes, its fake gives the right shapes and strides, autograd is registered."""
    operation, arguments = _forward(name)
    assert set(opcheck(operation, arguments).values()) == {"SUCCESS"}


@needs_a_compiler
def test_an_operation_is_registered_and_direct_with_the_same_result_and_gradient() -> None:
    x, logits = _bits(3, 7), _random(2, 3, 7).requires_grad_()
    results = []
    for log_prob in (bernoulli._log_prob, torch.ops.dvaepp.bernoulli_log_prob.default):
        value = log_prob(x, logits, True)[0]
        (slope,) = torch.autograd.grad(value.square().sum(), logits, create_graph=True)
        (second,) = torch.autograd.grad(slope.sum(), logits)
        results.append((value, slope, second, value.grad_fn))
    for direct, registered in zip(results[0][:3], results[1][:3], strict=True):
        assert torch.equal(direct, registered)
    names = [type(result[3]).__name__ for result in results]
    assert "Generated" in names[1] and "Generated" not in names[0]


@needs_a_compiler
@pytest.mark.parametrize("name", ["convolution", "convolution, no bias", "chain", "chain of one block"])
def test_lists_of_tensors_pass_directly_with_the_same_results_and_gradients(name: str) -> None:
    registered, arguments = _forward(name)
    leaves = [t for a in arguments for t in (a if isinstance(a, list) else [a]) if isinstance(t, Tensor)]
    results = []
    for operation in (winograd._convolve if name.startswith("conv") else residual_chain._chain, registered):
        y, kept = operation(*arguments)
        results.append([y, *([kept] if isinstance(kept, Tensor) else kept)])
        results[-1] += torch.autograd.grad(y.square().sum(), leaves)
        assert ("Generated" in type(y.grad_fn).__name__) == (operation is registered)
        with torch.no_grad():
            assert torch.equal(operation(*arguments)[0], y)
    for direct, expected in zip(*results, strict=True):
        assert torch.equal(direct, expected)


@needs_a_compiler
def test_an_operation_called_where_somebody_looks_is_the_registered_one() -> None:
    seen = []

    class Looks(TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            seen.append(str(func))
            return func(*args, **(kwargs or {}))

    with Looks():
        bernoulli._log_prob(_bits(3, 7), _random(2, 3, 7), False)
    assert "dvaepp.bernoulli_log_prob.default" in seen
    with FakeTensorMode():
        assert bernoulli._log_prob(torch.empty(3, 7), torch.empty(2, 3, 7), False)[0].shape == (2, 3)


@needs_a_compiler
@pytest.mark.parametrize("name", ["convolution", "chain", "bound", "sample", "kl"])
def test_torch_finds_nothing_wrong_with_a_backward_pass(name: str) -> None:
    operation, arguments = _backward(name)
    assert set(opcheck(operation, arguments).values()) == {"SUCCESS"}


@needs_a_compiler
@pytest.mark.parametrize("name", ["convolution", "chain"])
def test_a_second_derivative_is_refused_with_a_word(name: str) -> None:
    operation, arguments = _forward(name)
    y = operation(*arguments)[0]
    (slope,) = torch.autograd.grad(y.square().sum(), arguments[0], create_graph=True)
    with pytest.raises(RuntimeError, match="no second derivative; DVAEPP_KERNEL=off"):
        slope.sum().backward()


def _replaced(arguments: tuple[Any, ...], place: int, change: Callable[[Tensor], Tensor]) -> tuple[Any, ...]:
    value = arguments[place]
    new = [change(value[0]), *value[1:]] if isinstance(value, list) else change(value)
    return (*arguments[:place], new, *arguments[place + 1 :])


# which argument of an operation is made wrong
TYPED = [("log_prob", 1), ("threshold", 1), ("sweeps", 2), ("adamax", 4)]
TYPED += [("convolution", 0), ("convolution", 1), ("chain", 0), ("chain", 2)]
TYPED += [("sample", 0), ("sample", 1), ("kl", 0), ("kl", 1)]


@needs_a_compiler
@pytest.mark.parametrize("name, place", TYPED)
@pytest.mark.parametrize("change", [Tensor.double, Tensor.half, Tensor.int, lambda t: t.to("meta")])
def test_wrong_types_and_devices_are_refused(name: str, place: int, change: Callable[[Tensor], Tensor]) -> None:
    operation, arguments = _forward(name)
    with pytest.raises(TypeError, match="compiled functions take float32 on a CPU"):
        operation(*_replaced(arguments, place, change))


SHAPED = [("log_prob", 0), *TYPED[1:], ("threshold", 3), ("threshold", 4), ("sweeps", 0), ("sweeps", 1), ("sweeps", 4)]
SHAPED += [("adamax", 0), ("adamax", 2), ("chain", 1)]


@needs_a_compiler
@pytest.mark.parametrize("name, place", SHAPED)
def test_wrong_shapes_are_refused(name: str, place: int) -> None:
    """One more line than there should be, along the first axis and along the last."""
    operation, arguments = _forward(name)
    for axis in (0, -1):
        with pytest.raises(ValueError, match="must"):
            operation(*_replaced(arguments, place, lambda t: torch.cat([t, t.narrow(axis, 0, 1)], axis)))  # noqa: B023


@needs_a_compiler
@pytest.mark.parametrize("name, place", [("sweeps", 0), ("sweeps", 2), ("threshold", 4), ("threshold", 0)])
def test_layouts_that_c_does_not_read_are_refused(name: str, place: int) -> None:
    operation, arguments = _forward(name)
    with pytest.raises(ValueError, match="must (be contiguous|lie together)"):
        operation(*_replaced(arguments, place, lambda t: t.t().contiguous().t()))


@needs_a_compiler
def test_normal_units_are_refused_where_they_are_no_maps_or_have_half_a_parameter() -> None:
    for wrong in (torch.float64, torch.int32):
        with pytest.raises(TypeError, match="compiled functions take float32 on a CPU"):
            torch.ops.dvaepp.normal_bound(_random(3, 4, 2, 2).to(wrong), 5.0)
    with pytest.raises(ValueError, match=r"expected maps \(rows, channels, height, width\), got \(3, 4\)"):
        torch.ops.dvaepp.normal_bound(_random(3, 4), 5.0)
    with pytest.raises(ValueError, match="with an even number of channels, got"):
        torch.ops.dvaepp.normal_kl(_random(3, 3, 2, 2), _random(3, 3, 2, 2))


@needs_a_compiler
def test_maps_that_tiles_do_not_cover_are_refused() -> None:
    x, weights, biases = _convolution()
    with pytest.raises(ValueError, match="square map of whole 4 x 4 tiles"):
        winograd._convolve(torch.cat([x, x]), weights, biases)
    with pytest.raises(ValueError, match="at most 256 units"):
        gibbs.sweeps_(_bits(2, 300), _bits(2, 3), _random(300, 3), _random(300), _random(3), 1, 1, 1, 0)


@needs_a_compiler
def test_autograd_knows_what_was_changed() -> None:
    left, right, *machine = _rbm()
    before = left._version
    gibbs.sweeps_(left, right, *machine, 1, 5, 1, 0)
    assert left._version > before


@needs_a_compiler
def test_functional_transforms_take_the_plain_form() -> None:
    x, logits = _bits(3, 7), _random(3, 7)
    expected = x - torch.sigmoid(logits)
    slope = torch.func.grad(lambda free: bernoulli.log_prob(x, free).sum())(logits)
    torch.testing.assert_close(slope, expected)
    each = torch.func.vmap(torch.func.grad(lambda free, y: bernoulli.log_prob(y, free)))(logits, x)
    torch.testing.assert_close(each, expected)


@needs_a_compiler
def test_compiled_graphs_hold_the_operations() -> None:
    done = subprocess.run([sys.executable, "-m", "tests.kernels.compiling"], capture_output=True, text=True)
    assert done.stdout.splitlines() == ["log_prob", "blocks", "local networks"], done.stderr


def test_kernels_are_switched_off_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    for setting, expected in [("", set()), ("on", set()), ("OFF", set(policy.KERNELS)), ("0", set(policy.KERNELS))]:
        monkeypatch.setenv("DVAEPP_KERNEL", setting)
        assert policy.switched_off() == expected
    monkeypatch.setenv("DVAEPP_KERNEL", "-gibbs, -winograd")
    assert policy.switched_off() == {"gibbs", "winograd"} and not policy.on("gibbs")
    for wrong in ("gibbs", "-nosuch", "off,-gibbs"):
        monkeypatch.setenv("DVAEPP_KERNEL", wrong)
        with pytest.raises(UsageError, match=f"DVAEPP_KERNEL={wrong}: expected off, on, or kernels to switch off"):
            policy.on("gibbs")
