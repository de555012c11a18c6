"""VIMCO: the two-sample bound and its terms."""

import pytest
import torch

from dvaepp.errors import UsageError
from dvaepp.estimators import VIMCO, Estimator
from tests.estimators.deviation import deviation
from tests.estimators.models import FEATURES, SIZES, STANDARD_ERRORS, truth

SAMPLES = 2


def build(sizes: tuple[int, ...], features: int) -> Estimator:
    return VIMCO(sizes, features, num_samples=SAMPLES)


@pytest.mark.parametrize("sizes", SIZES, ids=str)
def test_enumeration_tells_the_two_bounds_apart(sizes: tuple[int, ...]) -> None:
    assert truth(sizes, 2).bound > truth(sizes).bound + 0.1
    assert deviation(build(sizes, FEATURES), sizes, 20_000, num_samples=1) > 2 * STANDARD_ERRORS


@pytest.mark.parametrize("sizes", SIZES, ids=str)
def test_without_the_derivative_through_log_q_it_is_biased(
    sizes: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    left_out = VIMCO._leave_one_out
    monkeypatch.setattr(VIMCO, "_leave_one_out", lambda self, w: left_out(self, w) - torch.softmax(w, 0))  # cancels -w
    assert deviation(build(sizes, FEATURES), sizes, 20_000, num_samples=2) > 2 * STANDARD_ERRORS


def test_leave_one_out_replaces_one_weight_by_the_geometric_mean_of_the_others() -> None:
    weights = torch.tensor([[2.0], [3.0], [12.0]], dtype=torch.float64)
    left = VIMCO((4,), FEATURES, num_samples=3)._leave_one_out(weights.log())
    expected = [(36**0.5 + 3 + 12) / 3, (2 + 24**0.5 + 12) / 3, (2 + 3 + 6**0.5) / 3]
    assert left.exp()[:, 0].tolist() == pytest.approx(expected)


def test_one_sample_is_refused() -> None:
    with pytest.raises(UsageError, match="num_samples >= 2"):
        VIMCO((4,), FEATURES, num_samples=1)
