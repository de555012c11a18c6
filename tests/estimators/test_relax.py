"""RELAX: REBAR at its start, and a free-form part that learns."""

import pytest
import torch

from dvaepp.estimators import REBAR, RELAX, Estimator
from dvaepp.estimators.baseline import Mlp
from tests.estimators.deviation import shaken
from tests.estimators.models import FEATURES, SIZES, Toy
from tests.estimators.test_rebar import check_own_gradient

layouts = pytest.mark.parametrize("sizes", SIZES, ids=str)


def build(sizes: tuple[int, ...], features: int) -> Estimator:
    return shaken(RELAX(sizes, features, hidden=6, generator=torch.Generator().manual_seed(1)))


@layouts
def test_it_starts_as_rebar(sizes: tuple[int, ...]) -> None:
    estimators = REBAR(sizes, FEATURES).double(), RELAX(sizes, FEATURES).double()
    a, b = (e.estimate(Toy(sizes, 9), torch.Generator().manual_seed(0)) for e in estimators)
    assert torch.equal(a.surrogate, b.surrogate)
    assert a.own_loss is not None and b.own_loss is not None and torch.equal(a.own_loss, b.own_loss)


@layouts
def test_own_gradient_equals_finite_differences_of_the_second_moment(sizes: tuple[int, ...]) -> None:
    check_own_gradient(build(sizes, FEATURES), sizes)


def test_the_networks_slope_is_its_derivative() -> None:
    net, features = Mlp(7, 5).double(), torch.linspace(-1, 1, 21, dtype=torch.float64).view(3, 7).requires_grad_()
    torch.nn.init.normal_(net.weight_out, generator=torch.Generator().manual_seed(0))
    value, slope = net.with_slope(features, 4)
    torch.testing.assert_close(value, net(features))
    torch.testing.assert_close(slope, torch.autograd.grad(value.sum(), features)[0][:, -4:])
