import pytest
import torch
from torch.distributions import RelaxedBernoulli

from dvaepp.smoothing.concrete import Concrete

EXAMPLES = [Concrete(0.5), Concrete(0.1)]


def test_density_equals_torchs_relaxed_bernoulli() -> None:
    zeta, logits = torch.meshgrid(
        torch.linspace(0.02, 0.98, 49, dtype=torch.float64),
        torch.linspace(-3, 3, 13, dtype=torch.float64),
        indexing="ij",
    )
    for temperature in (0.3, 1.0, 2.0):
        expected = RelaxedBernoulli(torch.tensor(temperature, dtype=torch.float64), logits=logits).log_prob(zeta)
        torch.testing.assert_close(Concrete(temperature).log_prob(zeta, logits), expected)


def test_temperature_may_be_learned() -> None:
    temperature = torch.tensor(0.7, dtype=torch.float64, requires_grad=True)
    logits = torch.linspace(-2, 2, 5, dtype=torch.float64, requires_grad=True)
    rho = torch.full_like(logits, 0.3)
    assert torch.autograd.gradgradcheck(lambda t, x: Concrete(t).sample(x, rho), (temperature, logits))


def test_bad_temperature_is_named() -> None:
    with pytest.raises(ValueError, match="temperature must be finite and > 0, got 0"):
        Concrete(0.0)
