"""Concrete: its own bound, by quadrature over the noise-free density."""

import math

import numpy as np
import pytest
import torch
from scipy.integrate import quad

from dvaepp.errors import UsageError
from dvaepp.estimators import ConcreteEstimator, Estimator
from tests.estimators.models import FEATURES, STANDARD_ERRORS, Toy


def build(sizes: tuple[int, ...], features: int) -> Estimator:
    return ConcreteEstimator(sizes, features)


def _log_concrete(zeta: float, logit: float, temperature: float) -> float:
    """log density on (0, 1) of the binary Concrete distribution as Maddison et al. print it, α = e^logit."""
    alpha, t = math.exp(logit), temperature
    top = t * alpha * (zeta * (1 - zeta)) ** (-t - 1)
    return math.log(top) - 2 * math.log(alpha * zeta**-t + (1 - zeta) ** -t)


@pytest.mark.parametrize("temperature", [0.5, 0.8])
def test_bound_and_gradient_equal_quadrature(temperature: float) -> None:
    """One unit; the densities in ζ, whose Jacobian cancels between p and q."""
    model = Toy((1,), 1)
    posterior, prior = model.logits([]).item(), model.first.item()

    def bound(logit: float) -> float:
        def integrand(zeta: float) -> float:
            with torch.no_grad():
                likelihood = model.log_likelihood([torch.full((1, 1), zeta, dtype=torch.float64)]).item()
            log_q = _log_concrete(zeta, logit, temperature)
            return math.exp(log_q) * (likelihood + _log_concrete(zeta, prior, temperature) - log_q)

        return sum(quad(integrand, a, b, limit=200)[0] for a, b in ((1e-12, 0.01), (0.01, 0.99), (0.99, 1 - 1e-12)))

    exact = np.array([bound(posterior), (bound(posterior + 1e-4) - bound(posterior - 1e-4)) / 2e-4])
    model = Toy((1,), 200_000)
    offset = model.offsets[0].requires_grad_()
    estimate = ConcreteEstimator((1,), FEATURES, temperature=temperature).estimate(
        model, torch.Generator().manual_seed(0)
    )
    (gradient,) = torch.autograd.grad(estimate.surrogate.sum(), offset)
    for values, expected in zip((estimate.bound, gradient[:, 0]), exact, strict=True):
        error = values.std().item() / 200_000**0.5
        assert abs(values.mean().item() - expected) < STANDARD_ERRORS * error + 1e-5
        assert error < 0.02


def test_a_target_without_its_parts_is_refused() -> None:
    class Joint:
        num_layers = 1
        context = torch.zeros(3, FEATURES)

        def logits(self, z):
            return torch.zeros(3, 4)

        def log_joint(self, z):
            return z[0].sum(-1)

    with pytest.raises(UsageError, match="log_likelihood and prior_logits"):
        ConcreteEstimator((4,), FEATURES).estimate(Joint(), None)
    with pytest.raises(UsageError, match="temperature must be > 0, got 0"):
        ConcreteEstimator((4,), FEATURES, temperature=0.0)
