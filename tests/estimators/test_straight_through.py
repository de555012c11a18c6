"""Straight-through: its mean by enumeration of what it claims to compute, and where it is exact."""

import itertools

import torch
from torch import Tensor

from dvaepp.estimators import Estimator, StraightThrough
from tests.estimators.models import FEATURES, STANDARD_ERRORS, Toy


def build(sizes: tuple[int, ...], features: int) -> Estimator:
    return StraightThrough(sizes, features)


def _logit_gradients(model: Toy) -> Tensor:
    offset = model.offsets[0].requires_grad_()
    estimate = StraightThrough((4,), FEATURES).estimate(model, torch.Generator().manual_seed(0))
    return torch.autograd.grad(estimate.surrogate.sum(), offset)[0]


def test_mean_equals_the_enumerated_slope() -> None:
    states = torch.tensor(list(itertools.product([0.0, 1.0], repeat=4)), dtype=torch.float64, requires_grad=True)
    model = Toy((4,), len(states))
    mu = torch.sigmoid(model.logits([])[0]).detach()
    q = torch.where(states == 1, mu, 1 - mu).prod(-1).detach()
    (slope,) = torch.autograd.grad(model.log_joint([states]).sum(), states)
    expected = mu * (1 - mu) * (q @ slope - torch.logit(mu))
    gradients = _logit_gradients(Toy((4,), 100_000))
    error = gradients.std(0) / 100_000**0.5
    assert ((gradients.mean(0) - expected).abs() < STANDARD_ERRORS * error).all()


def test_it_is_exact_for_a_model_linear_in_z() -> None:
    weights = torch.arange(1.0, 5.0, dtype=torch.float64)

    class Linear(Toy):
        def log_joint(self, z: list[Tensor]) -> Tensor:
            return z[0] @ weights

    model = Linear((4,), 5)
    mu = torch.sigmoid(model.logits([])).detach()
    torch.testing.assert_close(_logit_gradients(model), mu * (1 - mu) * (weights - torch.logit(mu)))
