"""Gumbel-Rao: the slope given z by quadrature, and what averaging it does."""

import math

import pytest
import torch
from scipy.integrate import quad

from dvaepp.errors import UsageError
from dvaepp.estimators import Estimator, GumbelRao
from tests.estimators.deviation import mean
from tests.estimators.models import FEATURES, SIZES, STANDARD_ERRORS


def build(sizes: tuple[int, ...], features: int) -> Estimator:
    return GumbelRao(sizes, features)


@pytest.mark.parametrize("z", [0.0, 1.0])
@pytest.mark.parametrize("logit", [-1.5, 0.4])
def test_slope_given_z_equals_quadrature(logit: float, z: float) -> None:
    """E[σ'((l + ε)/λ)/λ | z] over the logistic density of ε, cut where z changes."""
    temperature, draws = 0.7, 200_000

    def slope(eps: float) -> float:
        zeta = 1 / (1 + math.exp(-(logit + eps) / temperature))
        density = math.exp(-eps) / (1 + math.exp(-eps)) ** 2
        return density * zeta * (1 - zeta) / temperature

    mass = 1 / (1 + math.exp(-logit if z else logit))
    exact = quad(slope, *((-logit, 50) if z else (-50, -logit)))[0] / mass
    estimator = GumbelRao((1,), FEATURES, temperature=temperature, num_draws=1)
    logits = torch.full((draws, 1), logit, dtype=torch.float64)
    slopes = estimator._slope(logits, torch.full_like(logits, z), torch.Generator().manual_seed(0))
    assert abs(slopes.mean().item() - exact) < STANDARD_ERRORS * slopes.std().item() / draws**0.5


@pytest.mark.parametrize("sizes", SIZES, ids=str)
def test_more_draws_leave_the_mean_and_lower_the_variance(sizes: tuple[int, ...]) -> None:
    """One layer: the slope is linear in the estimate, so its mean over draws does not depend on their number."""
    one, many = (mean(GumbelRao(sizes, FEATURES, num_draws=n), sizes, 20_000) for n in (1, 20))
    assert many.error.square().sum() < 0.9 * one.error.square().sum()
    if len(sizes) == 1:
        error = (one.error.square() + many.error.square()).sqrt().clamp_min(1e-12)
        assert ((one.gradient - many.gradient).abs() < STANDARD_ERRORS * error).all()


def test_bad_options_are_named() -> None:
    with pytest.raises(UsageError, match="num_draws >= 1, got 0.5 and 0"):
        GumbelRao((4,), FEATURES, num_draws=0)
