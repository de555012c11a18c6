import math

import pytest
import torch

from dvaepp.smoothing.spike_exponential import SpikeExponential

EXAMPLES = [SpikeExponential(0.5), SpikeExponential(5.0), SpikeExponential(200.0)]


@pytest.mark.parametrize("beta", [0.5, 3.0, 8.0])
def test_printed_formula_in_float64(beta: float) -> None:
    logits, rho = torch.meshgrid(
        torch.linspace(-4, 4, 33, dtype=torch.float64),
        torch.linspace(0.01, 0.99, 34, dtype=torch.float64),
        indexing="ij",
    )
    mu = torch.sigmoid(logits)
    inside = ((rho + mu - 1) / mu).clamp_min(0) * (math.exp(beta) - 1) + 1
    printed = torch.where(rho <= 1 - mu, 0.0, torch.log(inside) / beta)
    torch.testing.assert_close(SpikeExponential(beta).sample(logits, rho), printed, rtol=1e-9, atol=1e-11)


def test_gradients_equal_finite_differences() -> None:
    logits = torch.linspace(-3, 3, 31, dtype=torch.float64, requires_grad=True)
    for rho in (0.03, 0.4, 0.9):
        noise = torch.full_like(logits, rho)
        for beta in (0.5, 5.0):
            assert torch.autograd.gradcheck(lambda x, b=beta, n=noise: SpikeExponential(b).sample(x, n), logits)


def test_half_the_mass_sits_on_the_spike() -> None:
    rho = torch.linspace(0.0005, 0.9995, 1000)
    zeta = SpikeExponential(5.0).sample(torch.zeros(1000), rho)
    assert (zeta == 0).sum() == 500


def test_bad_beta_is_named() -> None:
    with pytest.raises(ValueError, match="beta must be finite and > 0, got 0"):
        SpikeExponential(0.0)
