"""NVIL: what its baseline, running averages and normalisation do."""

import pytest
import torch

from dvaepp.estimators import NVIL, Estimator
from tests.estimators.deviation import deviation, mean, shaken
from tests.estimators.models import FEATURES, SIZES, STANDARD_ERRORS, Toy, truth


def build(sizes: tuple[int, ...], features: int) -> Estimator:
    estimator = shaken(NVIL(sizes, features, hidden=6, generator=torch.Generator().manual_seed(1)))
    estimator.running_mean += 2.0
    return estimator


def test_a_baseline_that_has_seen_z_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """The network of a layer may read earlier layers only; rolled by one, layer 2's baseline would apply to layer 1."""
    estimator = build((3, 3), FEATURES).eval()
    forward = type(estimator.baselines).forward
    for shift, caught in ((0, False), (1, True)):
        monkeypatch.setattr(type(estimator.baselines), "forward", lambda *a, n=shift: 5 * forward(*a).roll(n, 0))
        assert (deviation(estimator, (3, 3), 100_000) > STANDARD_ERRORS * (1 + caught)) == caught


def test_normalisation_rescales_the_posterior_gradient_alone() -> None:
    plain, normalized = NVIL((3, 3), FEATURES).double(), NVIL((3, 3), FEATURES, normalize=True).double()
    normalized.load_state_dict(plain.state_dict())
    scale = torch.tensor([4.0, 0.25], dtype=torch.float64)
    gradients = []
    for estimator in (plain, normalized):
        estimator.running_variance.copy_(scale)
        model = Toy((3, 3), 9)
        estimator.estimate(model, torch.Generator().manual_seed(0)).surrogate.mean().backward()
        gradients.append(model)
    first, second = gradients
    torch.testing.assert_close(second.leave[0].grad, first.leave[0].grad / 2)
    torch.testing.assert_close(second.leave[1].grad, first.leave[1].grad)  # never divided by less than 1
    torch.testing.assert_close(second.decode.grad, first.decode.grad)


def test_running_averages_apply_from_the_next_batch_on() -> None:
    """The first batch sets them; a batch is never judged by averages that have seen it."""
    estimator, model = NVIL((4,), FEATURES).double(), Toy((4,), 50)
    generator = torch.Generator().manual_seed(0)
    first = estimator.estimate(model, generator)
    torch.testing.assert_close(first.own_loss, first.bound.square().mean())
    torch.testing.assert_close(estimator.running_mean[0], first.bound.mean())
    torch.testing.assert_close(estimator.running_variance[0], first.bound.var(correction=0))
    second = estimator.estimate(model, generator)
    torch.testing.assert_close(second.own_loss, (second.bound - first.bound.mean()).square().mean())
    torch.testing.assert_close(estimator.running_mean[0], 0.8 * first.bound.mean() + 0.2 * second.bound.mean())
    estimator.eval().estimate(model, generator)
    torch.testing.assert_close(estimator.running_mean[0], 0.8 * first.bound.mean() + 0.2 * second.bound.mean())


@pytest.mark.parametrize("sizes", SIZES, ids=str)
def test_learning_the_baseline_lowers_the_variance(sizes: tuple[int, ...]) -> None:
    estimator, model, generator = NVIL(sizes, FEATURES).double(), Toy(sizes, 100), torch.Generator().manual_seed(0)
    before = mean(estimator.eval(), sizes, 10_000).error.square().sum()
    optimizer = torch.optim.Adam(estimator.train().parameters(), 1e-2)
    for _ in range(100):
        optimizer.zero_grad()
        loss = estimator.estimate(model, generator).own_loss
        assert loss is not None
        loss.backward()
        optimizer.step()
    assert mean(estimator.eval(), sizes, 10_000).error.square().sum() < 0.5 * before


def test_the_oracle_has_gradients_worth_estimating() -> None:
    for sizes in SIZES:
        assert truth(sizes).gradient.abs().max() > 0.3
