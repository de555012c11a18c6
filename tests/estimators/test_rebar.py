"""REBAR: each term is needed, the limits are the known ones, and η and λ follow the gradient of the variance."""

import pytest
import torch
from torch import Tensor

from dvaepp.errors import UsageError
from dvaepp.estimators import NVIL, REBAR, Estimator, rebar
from dvaepp.estimators.draws import Layer
from dvaepp.numerics import Evaluation, uniform
from tests.estimators.deviation import deviation, mean, shaken
from tests.estimators.models import FEATURES, SIZES, STANDARD_ERRORS, Toy

layouts = pytest.mark.parametrize("sizes", SIZES, ids=str)


def build(sizes: tuple[int, ...], features: int) -> Estimator:
    return shaken(REBAR(sizes, features))


def test_defaults_are_the_authors() -> None:
    estimator = REBAR((4,), FEATURES)
    assert estimator.eta.item() == 1
    assert estimator.log_temperature.exp().item() == pytest.approx(0.5)
    with pytest.raises(UsageError, match="temperature must be > 0, got 0"):
        REBAR((4,), FEATURES, temperature=0.0)


class NoReparameterisation(REBAR):
    """η c(ζ) is subtracted and its mean not added back."""

    def control(self, *arguments) -> list[Evaluation]:
        return [Evaluation(value, 0 * slope) for value, slope in super().control(*arguments)]


class NoScore(REBAR):
    """The mean of the control variate is added, the control variate itself not subtracted."""

    def control(self, *arguments) -> list[Evaluation]:
        return [Evaluation(0 * value, slope) for value, slope in super().control(*arguments)]


@layouts
@pytest.mark.parametrize("broken", [NoReparameterisation, NoScore])
def test_enumeration_sees_a_dropped_term(sizes: tuple[int, ...], broken: type[REBAR]) -> None:
    assert deviation(shaken(broken(sizes, FEATURES)), sizes, 20_000) > 2 * STANDARD_ERRORS


@layouts
def test_enumeration_sees_noise_that_is_not_tied(sizes: tuple[int, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    """κ = 1 is the derivative at fixed ρ alone, without that of the conditional draw."""
    monkeypatch.setattr(rebar, "tied_slope", lambda layer: torch.ones_like(layer.mu))
    assert deviation(build(sizes, FEATURES), sizes, 100_000) > 2 * STANDARD_ERRORS


def test_tied_slope_equals_finite_differences_of_the_conditional_noise() -> None:
    """v is the rank of ρ within its half; moving l with v held moves ρ, and κ = -∂logit(ρ)/∂l."""
    logits = torch.tensor([-2.0, -0.3, 0.0, 1.7], dtype=torch.float64).repeat(50, 1)
    rho = uniform(50, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    mu = torch.sigmoid(logits)
    on = rho > 1 - mu
    v = torch.where(on, (rho - 1 + mu) / mu, rho / (1 - mu))

    def noise(logits: Tensor) -> Tensor:
        mu = torch.sigmoid(logits)
        return torch.logit(torch.where(on, 1 - mu + v * mu, v * (1 - mu)))

    torch.testing.assert_close(noise(logits), torch.logit(rho))
    slope = (noise(logits + 1e-6) - noise(logits - 1e-6)) / 2e-6
    layer = Layer(logits, mu, rho, on.double(), torch.zeros(50))
    torch.testing.assert_close(rebar.tied_slope(layer), -slope, rtol=1e-6, atol=1e-7)


def second_moment(estimator: Estimator, sizes: tuple[int, ...]) -> tuple[Tensor, Tensor]:
    """Mean over examples of |g|², g read off as the gradient to an offset of the logits, and own_loss; fixed noise."""
    model = Toy(sizes, 30)
    model.offsets = [offset.requires_grad_() for offset in model.offsets]
    estimate = estimator.estimate(model, torch.Generator().manual_seed(4))
    gradients = torch.autograd.grad(estimate.surrogate.sum(), model.offsets)
    assert estimate.own_loss is not None
    return torch.stack([g.square().sum(-1).mean() for g in gradients]).sum(), estimate.own_loss


def check_own_gradient(estimator: Estimator, sizes: tuple[int, ...], step: float = 1e-5) -> None:
    moment, loss = second_moment(estimator, sizes)
    torch.testing.assert_close(loss, moment)
    loss.backward()
    for name, parameter in estimator.named_parameters():
        assert parameter.grad is not None
        numeric = torch.zeros_like(parameter)
        for i in range(min(parameter.numel(), 8)):
            values = []
            for sign in (1, -1):
                with torch.no_grad():
                    parameter.view(-1)[i] += sign * step
                values.append(second_moment(estimator, sizes)[0])
                with torch.no_grad():
                    parameter.view(-1)[i] -= sign * step
            numeric.view(-1)[i] = (values[0] - values[1]) / (2 * step)
        seen = numeric.view(-1)[:8]
        torch.testing.assert_close(
            parameter.grad.view(-1)[:8], seen, rtol=1e-5, atol=1e-6, msg=lambda m, n=name: f"{n}: {m}"
        )


@layouts
def test_own_gradient_equals_finite_differences_of_the_second_moment(sizes: tuple[int, ...]) -> None:
    check_own_gradient(build(sizes, FEATURES), sizes)


@layouts
def test_frozen_scale_and_temperature_cost_no_second_derivative(sizes: tuple[int, ...]) -> None:
    free, frozen = build(sizes, FEATURES), build(sizes, FEATURES).requires_grad_(False)
    a, b = (e.estimate(Toy(sizes, 9), torch.Generator().manual_seed(0)) for e in (free, frozen))
    assert b.own_loss is None
    torch.testing.assert_close(a.surrogate, b.surrogate)


@layouts
def test_a_vanishing_scale_is_the_score_function(sizes: tuple[int, ...]) -> None:
    plain, scaled = NVIL(sizes, FEATURES).double(), REBAR(sizes, FEATURES).double()
    torch.nn.init.constant_(scaled.scale, -800.0)
    a, b = (e.estimate(Toy(sizes, 9), torch.Generator().manual_seed(0)).surrogate for e in (plain, scaled))
    torch.testing.assert_close(a, b)


def test_at_high_temperature_zeta_is_the_mean() -> None:
    """The authors' limit: the control variate becomes MuProp's constant, f at the mean-field point."""
    seen: list[Tensor] = []

    class Recorder(REBAR):
        def control(self, target, layers, split, c):
            seen.extend([split[0].detach(), layers[0].mu])
            return super().control(target, layers, split, c)

    Recorder((4,), FEATURES, temperature=1e6).double().estimate(Toy((4,), 9), torch.Generator().manual_seed(0))
    torch.testing.assert_close(seen[0], seen[1], rtol=0, atol=1e-5)


@layouts
def test_learning_lowers_the_variance_below_the_score_functions(sizes: tuple[int, ...]) -> None:
    estimator, model = REBAR(sizes, FEATURES).double(), Toy(sizes, 100)
    generator, optimizer = torch.Generator().manual_seed(0), torch.optim.Adam(estimator.parameters(), 3e-2)
    before = mean(estimator, sizes, 10_000).error.square().sum()
    for _ in range(40):
        optimizer.zero_grad()
        loss = estimator.estimate(model, generator).own_loss
        assert loss is not None
        loss.backward()
        optimizer.step()
    after = mean(estimator, sizes, 10_000).error.square().sum()
    assert after < before * 1.02
    assert after < 0.5 * mean(NVIL(sizes, FEATURES).double().eval(), sizes, 10_000).error.square().sum()
