"""MuProp: the mean of its control variate."""

import pytest
import torch
from torch import Tensor

from dvaepp.estimators import NVIL, Estimator, MuProp, muprop
from tests.estimators.deviation import deviation, mean, shaken
from tests.estimators.models import FEATURES, SIZES, STANDARD_ERRORS, Toy

layouts = pytest.mark.parametrize("sizes", SIZES, ids=str)


def build(sizes: tuple[int, ...], features: int) -> Estimator:
    return shaken(MuProp(sizes, features, hidden=6, generator=torch.Generator().manual_seed(1)))


@layouts
def test_without_the_mean_added_back_it_is_biased(sizes: tuple[int, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(muprop, "control_mean", lambda layer, slope: 0 * slope)
    assert deviation(build(sizes, FEATURES), sizes, 20_000) > 2 * STANDARD_ERRORS


@layouts
def test_the_control_variate_lowers_the_variance(sizes: tuple[int, ...]) -> None:
    spread = [
        mean(estimator.double().eval(), sizes, 20_000).error.square().sum()
        for estimator in (NVIL(sizes, FEATURES), MuProp(sizes, FEATURES))
    ]
    assert spread[1] < 0.7 * spread[0]


def test_a_linear_model_has_no_noise_in_the_posterior_gradient() -> None:
    """log p(x, z) linear in z: the expansion is exact, and every draw gives the same gradient to the logits."""

    class Linear(Toy):
        def log_joint(self, z: list[Tensor]) -> Tensor:
            return z[0] @ torch.arange(1.0, 5.0, dtype=torch.float64)

    model = Linear((4,), 20)
    offset = model.offsets[0].requires_grad_()
    estimate = MuProp((4,), FEATURES).double().estimate(model, torch.Generator().manual_seed(0))
    (gradient,) = torch.autograd.grad(estimate.surrogate.sum(), offset)
    torch.testing.assert_close(gradient, gradient[:1].expand_as(gradient))
    mu = torch.sigmoid(model.logits([])[0])
    exact = mu * (1 - mu) * (torch.arange(1.0, 5.0, dtype=torch.float64) - torch.logit(mu))
    torch.testing.assert_close(gradient[0], exact)
