"""Smoothings, bounds and a model's loss under `torch.func` and `torch.compile`: the numbers that they give without."""

import subprocess
import sys
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.autograd import grad, gradgradcheck

from dvaepp import smoothing as members
from dvaepp.numerics import uniform
from dvaepp.objectives import boltzmann_kl, joint, marginal, relaxed_kl, rolfe_kl
from dvaepp.priors import RBM
from dvaepp.smoothing import Overlapping, Smoothing
from tests.objectives.given import SMOOTHING, feed_forward

Function = Callable[[Tensor, Tensor], Tensor]  # of logits and of noise or a point, row by row
SMOOTHINGS: dict[str, Smoothing] = {
    name: member(validate_args=False)  # type: ignore[call-arg]
    for name, member in members.MEMBERS.items()
} | {"exponential per unit": members.Exponential(torch.linspace(0.3, 60, 6).double(), validate_args=False)}
SPIKE = SMOOTHINGS["spike_exponential"]


def _case() -> tuple[RBM, Tensor, Tensor]:
    g = torch.Generator().manual_seed(0)
    rbm = RBM(3, 3).double()
    with torch.no_grad():
        for parameter in rbm.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=g))
    return rbm, torch.randn(5, 6, generator=g).double(), uniform(5, 6, generator=g).double()


def _smoothing_functions() -> dict[str, Function]:
    found: dict[str, Function] = {}
    for name, member in SMOOTHINGS.items():
        found[f"{name} sample"] = member.sample
        if isinstance(member, Overlapping):
            found[f"{name} sample_components"] = member.sample_components
            found[f"{name} log_ratio"] = lambda logits, rho, member=member: member.log_ratio(_inside(logits))
        if hasattr(member, "log_prob"):
            found[f"{name} log_prob"] = lambda logits, rho, member=member: member.log_prob(rho, logits)
            found[f"{name} log_prob of zeta"] = lambda zeta, rho, member=member: member.log_prob(_inside(zeta), rho)
    return found


def _inside(x: Tensor) -> Tensor:
    """A point of every support."""
    return 0.1 + 0.8 * torch.sigmoid(x)


def _groups(logits: Tensor, rho: Tensor, member: Smoothing = SMOOTHING) -> tuple[list[Tensor], list[Tensor]]:
    """Two groups, of which the second reacts to the sample of the first."""
    zeta = member.sample(logits[..., :3], rho[..., :3])
    second = logits[..., 3:] + zeta
    return [logits[..., :3], second], [zeta, member.sample(second, rho[..., 3:])]


def _given(x: Tensor, rho: Tensor) -> tuple[list[Tensor], list[Tensor]]:
    """The same with points in place of samples, some on the spike: no smoothing is inverted."""
    zeta = _inside(x) * (rho > 0.3)
    return [x[..., :3], x[..., 3:] + zeta[..., :3]], [zeta[..., :3], zeta[..., 3:]]


Bound = Callable[[RBM, list[Tensor], list[Tensor]], Tensor]
PRIOR_LOGITS = torch.linspace(-1, 1, 3).double()
BOUNDS: dict[str, Bound] = {
    "joint": lambda rbm, logits, zeta: joint(logits, [PRIOR_LOGITS, zeta[0]]),
    "marginal": lambda rbm, logits, zeta: marginal(logits, [PRIOR_LOGITS, zeta[0]], zeta, SMOOTHING),
    "marginal path": lambda rbm, q, zeta: marginal(q, [PRIOR_LOGITS, zeta[0]], zeta, SMOOTHING, path_only=True),
    "boltzmann_kl": lambda rbm, logits, zeta: boltzmann_kl(rbm, logits, zeta, SMOOTHING, 0.0),
    "rolfe_kl": lambda rbm, logits, zeta: rolfe_kl(rbm, logits, zeta, 0.0),
    "relaxed_kl": lambda rbm, logits, zeta: relaxed_kl(rbm, logits, zeta, SMOOTHING, 0.0),
}
REFUSED = ("marginal path", "rolfe_kl", "relaxed_kl")


def _bound(name: str, rbm: RBM) -> Function:
    member = SPIKE if name == "rolfe_kl" else SMOOTHING
    return lambda logits, rho: BOUNDS[name](rbm, *_groups(logits, rho, member))


def _check_transforms(function: Function, logits: Tensor, other: Tensor) -> None:
    """Gradients by `torch.func.grad`, of each row by `vmap`, and of a parameter by `functional_call`."""
    leaf = logits.clone().requires_grad_()
    value = function(leaf, other)
    (expected,) = grad(value.sum(), leaf) if value.requires_grad else (torch.zeros_like(leaf),)
    torch.testing.assert_close(torch.func.vmap(function)(logits, other), value.detach())
    total = torch.func.grad(lambda x, y: function(x, y).sum())
    torch.testing.assert_close(total(logits, other), expected)
    torch.testing.assert_close(torch.func.vmap(total)(logits, other), expected)
    shared = torch.func.vmap(total, in_dims=(None, 0))(logits[0], other)
    torch.testing.assert_close(shared, total(logits[0].expand_as(other), other))

    class Holder(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.logits = nn.Parameter(torch.zeros_like(logits))

        def forward(self, other: Tensor) -> Tensor:
            return function(self.logits, other).sum()

    holder = Holder()
    called = torch.func.grad(lambda parameters: torch.func.functional_call(holder, parameters, (other,)))
    torch.testing.assert_close(called({"logits": logits})["logits"], expected)


@pytest.mark.parametrize("name", _smoothing_functions())
def test_smoothings_under_transforms(name: str) -> None:
    _, logits, rho = _case()
    _check_transforms(_smoothing_functions()[name], logits, rho)


@pytest.mark.parametrize("name", BOUNDS)
def test_bounds_under_transforms(name: str) -> None:
    rbm, logits, rho = _case()
    _check_transforms(_bound(name, rbm), logits, rho)


@pytest.mark.parametrize("name", ["boltzmann_kl", "rolfe_kl", "relaxed_kl"])
def test_gradients_of_the_prior_by_functional_call(name: str) -> None:
    rbm, logits, rho = _case()
    expected = grad(_bound(name, rbm)(logits, rho).sum(), list(rbm.parameters()))

    class Called(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.rbm = rbm

        def forward(self) -> Tensor:
            return _bound(name, self.rbm)(logits, rho).sum()

    called = Called()
    value = torch.func.grad(lambda parameters: torch.func.functional_call(called, parameters, ()))
    found = value({name: p.detach() for name, p in called.named_parameters()})
    torch.testing.assert_close(tuple(found.values()), expected)


def _refuses_second_derivatives(function: Function, logits: Tensor, other: Tensor) -> None:
    """Also beside another term that has them, and inside `torch.func`."""
    leaf = logits.clone().requires_grad_()

    def total(x: Tensor) -> Tensor:
        return function(x, other).sum() + x.square().sum()

    (first,) = grad(total(leaf), leaf, create_graph=True)
    with pytest.raises(RuntimeError, match="no second derivatives"):
        first.sum().backward()
    with pytest.raises(RuntimeError, match="no second derivatives"):
        torch.func.grad(lambda x: torch.func.grad(total)(x).sum())(logits)


@pytest.mark.parametrize("name", _smoothing_functions())
def test_second_derivatives_of_smoothings_are_right_or_refused(name: str) -> None:
    _, logits, rho = _case()
    function = _smoothing_functions()[name]
    if name == "binary sample":
        assert not function(logits.requires_grad_(), rho).requires_grad
    elif "sample" in name and "concrete" not in name:
        _refuses_second_derivatives(function, logits, rho)
    else:
        assert gradgradcheck(lambda x: function(x, rho[:2]), logits[:2].requires_grad_())


@pytest.mark.parametrize("name", BOUNDS)
def test_second_derivatives_of_bounds_are_right_or_refused(name: str) -> None:
    """At given points; samples refuse by themselves."""
    rbm, logits, rho = _case()
    if name in REFUSED:
        _refuses_second_derivatives(lambda x, y: BOUNDS[name](rbm, *_given(x, y)), logits, rho)
        return
    leaves = [logits[:2].requires_grad_(), *(rbm.parameters() if name == "boltzmann_kl" else ())]
    assert gradgradcheck(lambda x, *_: BOUNDS[name](rbm, *_given(x, rho[:2])), leaves)


def test_the_loss_of_a_model_under_transforms() -> None:
    """Without batch norm, which mixes the examples, the mean of each example's gradient is that of the batch."""
    loss, data = feed_forward(batch_norm=False, dtype=torch.float64)
    parameters = {name: p.detach() for name, p in loss.named_parameters()}
    expected = dict(zip(parameters, grad(loss(*data), list(loss.parameters())), strict=True))

    def value(parameters: dict[str, Tensor], *data: Tensor) -> Tensor:
        return torch.func.functional_call(loss, parameters, data)

    torch.testing.assert_close(torch.func.grad(value)(parameters, *data), expected)
    rows = [part[:, None] for part in data]
    each = torch.func.vmap(torch.func.grad(value), in_dims=(None, 0, 0, 0))(parameters, *rows)
    torch.testing.assert_close({name: g.mean(0) for name, g in each.items()}, expected)
    first = grad(loss(*data), list(loss.parameters()), create_graph=True)
    with pytest.raises(RuntimeError, match="no second derivatives"):
        sum(g.sum() for g in first).backward()


COMPILED = ["samples", "densities", "bound", "distribution", "convolutional", "feed-forward"]


@pytest.mark.slow
def test_smoothings_bounds_and_losses_compile_without_a_break() -> None:
    """In a process of its own: the checks of shapes that run in tests are no part of a graph."""
    done = subprocess.run([sys.executable, "-m", "tests.objectives.compiling"], capture_output=True, text=True)
    assert done.returncode == 0 and done.stdout.split() == COMPILED, done.stderr
