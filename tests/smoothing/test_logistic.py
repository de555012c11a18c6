import math

import numpy as np
import pytest
import torch

from dvaepp.smoothing.logistic import Logistic
from tests import oracle
from tests.smoothing.test_exponential import LOGITS, RHO

EXAMPLES = [Logistic(0.1), Logistic(0.02), Logistic(0.3, loc0=-0.5, loc1=2.0)]
NEAR_BINARY = Logistic(1e-4)


@pytest.mark.parametrize("scale", [1.0, 0.1, 0.03, 0.01, 0.003, 0.001])
def test_app_b_float32_equals_high_precision(scale: float) -> None:
    """|error| <= 5e-6 s + 1 ulp(ζ) at 95 % of the points; values and gradients finite."""
    logits, rho = (torch.tensor(g.ravel()) for g in np.meshgrid(np.float32(LOGITS), RHO, indexing="ij"))
    expected = [oracle.logistic_inverse(scale, a, r) for a, r in zip(logits.tolist(), rho.tolist(), strict=True)]
    logits.requires_grad_()
    zeta = Logistic(scale).sample(logits, rho)
    (slope,) = torch.autograd.grad(zeta.sum(), logits)
    assert torch.isfinite(zeta).all() and torch.isfinite(slope).all()
    error = np.array([float(abs(a - b)) for a, b in zip(zeta.tolist(), expected, strict=True)])
    allowed = 5e-6 * scale + np.spacing(np.abs(zeta.detach().numpy()))
    assert (error <= allowed).mean() >= 0.95


def test_per_unit_parameters_equal_one_at_a_time() -> None:
    scale, loc1 = torch.tensor([0.5, 0.1, 0.005]), torch.tensor([1.0, 2.0, 0.5])
    logits = torch.linspace(-5, 5, 21)[:, None].expand(21, 3).contiguous().requires_grad_()
    rho = torch.full((21, 3), 0.41)
    zeta = Logistic(scale, loc1=loc1).sample(logits, rho)
    (slope,) = torch.autograd.grad(zeta.sum(), logits)
    for unit in range(3):
        column = logits[:, unit].detach().requires_grad_()
        alone = Logistic(scale[unit].item(), loc1=loc1[unit].item()).sample(column, rho[:, unit])
        torch.testing.assert_close(zeta[:, unit], alone)
        torch.testing.assert_close(slope[:, unit], torch.autograd.grad(alone.sum(), column)[0])


@pytest.mark.parametrize("scale", [0.0, -2.0, math.nan, math.inf])
def test_bad_scale_is_named(scale: float) -> None:
    with pytest.raises(ValueError, match="scale must be finite and > 0, got .*Binary"):
        Logistic(scale)


@pytest.mark.parametrize("loc1", [0.0, -1.0, math.nan, math.inf])
def test_locations_out_of_order_are_named(loc1: float) -> None:
    with pytest.raises(ValueError, match="loc1 must be finite and > loc0, got"):
        Logistic(0.1, loc0=0.0, loc1=loc1)
