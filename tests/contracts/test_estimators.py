"""Laws every gradient estimator obeys, run on every member the registry finds.

A member `dvaepp/estimators/<stem>.py` comes with `tests/estimators/test_<stem>.py`, which names `build(sizes,
features)`, an instance whose own parameters are away from their start, and `SAMPLES` if its bound has two samples.
"""

import importlib
from functools import cache

import pytest
import torch
from torch import Tensor

from dvaepp.errors import UsageError
from dvaepp.estimators import MEMBERS, Estimate, Estimator, Target
from tests.estimators.deviation import Mean, distance, mean
from tests.estimators.models import FEATURES, SIZES, STANDARD_ERRORS, Toy, truth

MODULES = {stem: importlib.import_module(f"tests.estimators.test_{stem}") for stem in MEMBERS}
every = pytest.mark.parametrize("stem", MEMBERS)
unbiased = pytest.mark.parametrize("stem", [stem for stem, member in MEMBERS.items() if member.unbiased])
biased = pytest.mark.parametrize("stem", [stem for stem, member in MEMBERS.items() if not member.unbiased])
layouts = pytest.mark.parametrize("sizes", SIZES, ids=str)


def _build(stem: str, sizes: tuple[int, ...]) -> Estimator:
    return MODULES[stem].build(sizes, FEATURES)


def _samples(stem: str) -> int:
    return getattr(MODULES[stem], "SAMPLES", 1)


def _run(stem: str, sizes: tuple[int, ...], model: Toy, seed: int = 1) -> Estimate:
    return _build(stem, sizes).estimate(model, torch.Generator().manual_seed(seed))


def _gradients(loss: Tensor, model: Toy) -> list[Tensor | None]:
    return list(torch.autograd.grad(loss, list(model.parameters()), allow_unused=True, retain_graph=True))


@cache
def _mean(stem: str, sizes: tuple[int, ...], draws: int = 100_000) -> Mean:
    return mean(_build(stem, sizes).requires_grad_(False), sizes, draws)


@unbiased
@layouts
def test_the_mean_gradient_equals_enumeration(stem: str, sizes: tuple[int, ...]) -> None:
    """100 000 draws."""
    assert distance(_mean(stem, sizes), sizes, _samples(stem)) < STANDARD_ERRORS


@pytest.mark.slow
@unbiased
@layouts
def test_the_mean_gradient_equals_enumeration_closely(stem: str, sizes: tuple[int, ...]) -> None:
    """1 000 000 draws, where a tenth of the largest derivative could not hide."""
    estimate = _mean(stem, sizes, 1_000_000)
    assert distance(estimate, sizes, _samples(stem)) < STANDARD_ERRORS
    assert estimate.error.max() < 0.02 * truth(sizes).gradient.abs().max()


@biased
@layouts
def test_what_is_called_biased_is(stem: str, sizes: tuple[int, ...]) -> None:
    assert distance(_mean(stem, sizes), sizes) > 2 * STANDARD_ERRORS


@every
@layouts
def test_the_bound_is_that_of_its_sample(stem: str, sizes: tuple[int, ...]) -> None:
    """Its mean is the enumerated bound; the relaxed bound of Concrete is checked with Concrete."""
    if stem == "concrete":
        return
    estimate = _mean(stem, sizes)
    assert abs(estimate.bound - truth(sizes, _samples(stem)).bound) < STANDARD_ERRORS * estimate.bound_error
    assert estimate.bound_error < 0.02


@every
@layouts
def test_shapes_and_what_carries_a_gradient(stem: str, sizes: tuple[int, ...]) -> None:
    estimate = _run(stem, sizes, Toy(sizes, 7))
    assert estimate.surrogate.shape == estimate.bound.shape == (7,)
    assert estimate.surrogate.requires_grad and not estimate.bound.requires_grad
    assert (estimate.own_loss is not None) == bool(list(_build(stem, sizes).parameters()))
    assert estimate.own_loss is None or estimate.own_loss.shape == ()


@every
@layouts
def test_one_backward_serves_both_optimizers(stem: str, sizes: tuple[int, ...]) -> None:
    """Own parameters learn from own_loss alone, the model from the surrogate alone."""
    model, estimator = Toy(sizes, 7), _build(stem, sizes)
    estimate = estimator.estimate(model, torch.Generator().manual_seed(1))
    own = list(estimator.parameters())
    plain = _gradients(-estimate.surrogate.mean(), model)
    assert any(g is not None and g.abs().max() > 0 for g in plain)
    if not own:
        return
    assert estimate.own_loss is not None
    assert all(g is None or not g.any() for g in _gradients(estimate.own_loss, model))
    for parameter, g in zip(
        own, torch.autograd.grad(estimate.surrogate.sum(), own, allow_unused=True, retain_graph=True), strict=True
    ):
        assert g is None or not g.any(), f"the surrogate moves {tuple(parameter.shape)}"
    (estimate.own_loss - estimate.surrogate.mean()).backward()
    for parameter, expected in zip(model.parameters(), plain, strict=True):
        torch.testing.assert_close(parameter.grad, expected)
    assert all(p.grad is not None and p.grad.isfinite().all() for p in own)
    assert any(p.grad.abs().max() > 0 for p in own if p.grad is not None)


@every
@layouts
def test_equal_seeds_give_equal_estimates(stem: str, sizes: tuple[int, ...]) -> None:
    def surrogate(seed: int) -> Tensor:
        return _run(stem, sizes, Toy(sizes, 7), seed).surrogate

    assert torch.equal(surrogate(1), surrogate(1))
    assert not torch.equal(surrogate(1), surrogate(2))


@every
@layouts
@pytest.mark.parametrize("gain", [20.0, 1000.0])
def test_values_and_gradients_stay_finite_in_float32(stem: str, sizes: tuple[int, ...], gain: float) -> None:
    """Posterior logits in the dozens and in the thousands: z is certain in any type."""
    model = Toy(sizes, 50, torch.float32, gain)
    estimator = _build(stem, sizes).float()
    estimate = estimator.estimate(model, torch.Generator().manual_seed(1))
    assert estimate.surrogate.dtype == torch.float32 and estimate.surrogate.isfinite().all()
    (-estimate.surrogate.mean() + (0 if estimate.own_loss is None else estimate.own_loss)).backward()
    for parameter in [*model.parameters(), *estimator.parameters()]:
        assert parameter.grad is None or parameter.grad.isfinite().all()


@every
def test_a_model_it_cannot_train_is_refused(stem: str) -> None:
    member = MEMBERS[stem]
    member.check("directed", differentiable_decoder=True)
    for flag, arguments in (
        (member.needs_directed_prior, ("rbm", True)),
        (member.needs_relaxed_target, ("directed", False)),
    ):
        if flag:
            with pytest.raises(UsageError, match=f"{member.__name__} .*; use nvil, vimco, arm or disarm"):
                member.check(*arguments)
        else:
            member.check(*arguments)


@every
def test_a_relaxed_point_is_asked_for_only_if_declared(stem: str) -> None:
    """A target that refuses gradients in z and anything but corners is enough for those that do not declare a need."""

    class Corners(Toy):
        def log_joint(self, z: list[Tensor]) -> Tensor:
            if any(value.requires_grad or not ((value == 0) | (value == 1)).all() for value in z):
                raise AssertionError("relaxed")
            return super().log_joint(z)

    model = Corners((3, 3), 7)
    assert isinstance(model, Target)
    if not MEMBERS[stem].needs_relaxed_target:
        _run(stem, (3, 3), model)
    elif stem != "concrete":  # which never asks for log_joint
        with pytest.raises(AssertionError, match="relaxed"):
            _run(stem, (3, 3), model)


@every
def test_wrong_sizes_are_named(stem: str) -> None:
    with pytest.raises(UsageError, match="2 layers and 5 features, got 1 and 5"):
        _run(stem, (3, 3), Toy((4,), 7))
    with pytest.raises(UsageError, match=r"layers of >= 1 units and >= 1 features, got \[\] and 3"):
        MEMBERS[stem]([], 3)
