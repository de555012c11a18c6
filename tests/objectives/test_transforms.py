"""Bounds under `torch.func` and `torch.compile`: the numbers that they give without."""

import subprocess
import sys

import pytest
import torch
from torch import Tensor

from dvaepp.numerics import uniform
from dvaepp.objectives import boltzmann_kl
from dvaepp.priors import RBM
from dvaepp.smoothing import Exponential

SMOOTHING = Exponential(8.0, validate_args=False)


def _case() -> tuple[RBM, Tensor, Tensor]:
    g = torch.Generator().manual_seed(0)
    rbm = RBM(3, 3)
    with torch.no_grad():
        for parameter in rbm.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=g))
    return rbm, torch.randn(5, 6, generator=g), uniform(5, 6, generator=g)


def _kl(rbm: RBM, logits: Tensor, rho: Tensor) -> Tensor:
    """Two groups, of which the second reacts to the first."""
    first, noise = logits[..., :3], rho[..., :3]
    zeta = SMOOTHING.sample(first, noise)
    second = logits[..., 3:] + zeta
    return boltzmann_kl(rbm, [first, second], [zeta, SMOOTHING.sample(second, rho[..., 3:])], SMOOTHING, 0.0)


def test_gradients_of_each_example_by_itself() -> None:
    rbm, logits, rho = _case()
    leaf = logits.clone().requires_grad_()
    (expected,) = torch.autograd.grad(_kl(rbm, leaf, rho).sum(), leaf)
    each = torch.func.vmap(torch.func.grad(lambda row, noise: _kl(rbm, row[None], noise[None])[0]))(logits, rho)
    torch.testing.assert_close(each, expected)


def test_gradients_of_the_prior_by_functional_call() -> None:
    rbm, logits, rho = _case()
    expected = torch.autograd.grad(_kl(rbm, logits, rho).sum(), list(rbm.parameters()))
    names = [name for name, _ in rbm.named_parameters()]

    class Bound(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.rbm = rbm

        def forward(self) -> Tensor:
            return _kl(self.rbm, logits, rho).sum()

    bound = Bound()

    def value(parameters: dict[str, Tensor]) -> Tensor:
        return torch.func.functional_call(bound, parameters, ())

    found = torch.func.grad(value)({f"rbm.{name}": p.detach() for name, p in rbm.named_parameters()})
    for name, gradient in zip(names, expected, strict=True):
        torch.testing.assert_close(found[f"rbm.{name}"], gradient)


@pytest.mark.slow
def test_smoothings_and_bounds_compile_without_a_break() -> None:
    """In a process of its own: the checks of shapes that run in tests are no part of a graph."""
    done = subprocess.run([sys.executable, "-m", "tests.objectives.compiling"], capture_output=True, text=True)
    assert done.returncode == 0 and done.stdout.split() == ["samples", "densities", "bound", "distribution"], (
        done.stderr
    )
