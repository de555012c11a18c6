import pytest
import torch

from dvaepp.smoothing.power_law import PowerLaw

EXAMPLES = [PowerLaw(1.5), PowerLaw(4.0)]
NEAR_BINARY = PowerLaw(2e4)


def test_certain_unit_has_the_closed_form() -> None:
    """F₀⁻¹(ρ) = ρ^β."""
    rho = torch.linspace(0.01, 0.99, 50, dtype=torch.float64)
    zeta = PowerLaw(6.0).sample(torch.full_like(rho, -torch.inf), rho)
    torch.testing.assert_close(zeta, rho**6, rtol=1e-10, atol=0)


@pytest.mark.parametrize("beta", [1.0, 0.5, -3.0, float("inf")])
def test_bad_beta_is_named(beta: float) -> None:
    with pytest.raises(ValueError, match="beta must be finite and > 1, got"):
        PowerLaw(beta)
