import pytest
import torch
from scipy.stats import norm

from dvaepp.smoothing.gaussian import Gaussian

EXAMPLES = [Gaussian(0.1), Gaussian(0.5)]
NEAR_BINARY = Gaussian(1e-4)


def test_mixture_equals_scipy() -> None:
    zeta, logits = torch.linspace(-1, 2, 61, dtype=torch.float64), torch.tensor(0.7, dtype=torch.float64)
    mu = torch.sigmoid(logits).item()
    cdf = (1 - mu) * norm.cdf(zeta, 0, 0.2) + mu * norm.cdf(zeta, 1, 0.2)
    density = (1 - mu) * norm.pdf(zeta, 0, 0.2) + mu * norm.pdf(zeta, 1, 0.2)
    torch.testing.assert_close(Gaussian(0.2).cdf(zeta, logits), torch.tensor(cdf))
    torch.testing.assert_close(Gaussian(0.2).log_prob(zeta, logits).exp(), torch.tensor(density))


def test_float32_equals_float64() -> None:
    logits, rho = torch.meshgrid(torch.linspace(-20, 20, 41), torch.linspace(1e-6, 1 - 1e-6, 41), indexing="ij")
    for scale in (1.0, 0.1, 1e-3):
        single = Gaussian(scale).sample(logits, rho)
        torch.testing.assert_close(single, Gaussian(scale).sample(logits.double(), rho.double()).float())


def test_bad_scale_is_named() -> None:
    with pytest.raises(ValueError, match="scale must be finite and > 0, got -1"):
        Gaussian(-1.0)
