import math

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


@pytest.mark.parametrize("way", ["sample", "sample_components"])
@pytest.mark.parametrize(("dtype", "beta"), [(torch.float32, 30.0), (torch.float64, 250.0)])
def test_no_sample_is_subnormal(way: str, dtype: torch.dtype, beta: float) -> None:
    """Some processors take a hundred times as long to multiply by such a number; densities take it for 0 anyway."""
    tiny, smallest = torch.finfo(dtype).tiny, torch.finfo(dtype).smallest_normal * torch.finfo(dtype).eps
    log_zeta = torch.linspace(math.log(tiny) - 20, math.log(tiny) + 20, 101, dtype=torch.float64)
    assert ((log_zeta < math.log(tiny)) & (log_zeta > math.log(smallest))).sum() > 20  # some would be
    logits = torch.full((101,), -2.0, dtype=dtype, requires_grad=True)
    rho = torch.exp(log_zeta / beta) * torch.sigmoid(torch.tensor(2.0))
    zeta = getattr(PowerLaw(beta), way)(logits, rho.to(dtype))
    zeta.sum().backward()
    assert logits.grad is not None
    for each in (zeta.detach(), logits.grad):
        assert ((each == 0) | (each.abs() >= tiny)).all()
        assert (each[-20:] != 0).all()
