"""DisARM: ARM, conditioned."""

import pytest
import torch

from dvaepp.estimators import ARM, DisARM, Estimator
from tests.estimators.deviation import mean
from tests.estimators.models import FEATURES, SIZES, Toy


def build(sizes: tuple[int, ...], features: int) -> Estimator:
    return DisARM(sizes, features)


@pytest.mark.parametrize("sizes", SIZES, ids=str)
def test_its_variance_is_below_arms(sizes: tuple[int, ...]) -> None:
    arm, disarm = (mean(member(sizes, FEATURES), sizes, 20_000).error.square().sum() for member in (ARM, DisARM))
    assert disarm < 0.9 * arm


def test_units_on_which_the_pair_agrees_get_no_gradient() -> None:
    model = Toy((4,), 500)
    offset = model.offsets[0].requires_grad_()
    (gradient,) = torch.autograd.grad(
        DisARM((4,), FEATURES).estimate(model, torch.Generator().manual_seed(0)).surrogate.sum(), offset
    )
    mu = torch.sigmoid(model.logits([])[0]).detach()
    disagree = 2 * torch.minimum(mu, 1 - mu)
    share = (gradient != 0).double().mean(0)
    assert (share <= disagree + 5 * (disagree * (1 - disagree) / 500).sqrt()).all()
    assert (share > 0).any()
