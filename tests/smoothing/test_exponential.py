import math

import numpy as np
import pytest
import torch

from dvaepp.smoothing.exponential import Exponential
from tests import oracle

EXAMPLES = [Exponential(0.4), Exponential(8.0), Exponential(16.0)]
NEAR_BINARY = Exponential(1e4)

BETAS = [0.1, 1.0, 5.0, 8.0, 16.0, 50.0, 200.0, 1000.0]
LOGITS = sorted({sign * size for size in (0.0, 1.0, 5.0, 17.0, 40.0, 100.0) for sign in (-1, 1)})
_ends = math.log(1e-6 / (1 - 1e-6))
RHO = np.unique(
    np.concatenate([1 / (1 + np.exp(-np.linspace(_ends, -_ends, 41))), np.linspace(1e-6, 1 - 1e-6, 60), [0.5]])
).astype(np.float32)


def _reference(beta: float) -> tuple[torch.Tensor, torch.Tensor, np.ndarray, list]:
    logits, rho = (torch.tensor(g.ravel()) for g in np.meshgrid(np.float32(LOGITS), RHO, indexing="ij"))
    pairs = [oracle.exponential_inverse(beta, a, r) for a, r in zip(logits.tolist(), rho.tolist(), strict=True)]
    return logits, rho, np.array([zeta for zeta, _ in pairs]), [slope for _, slope in pairs]


def test_eq3_float32_equals_high_precision() -> None:
    """Values to 5e-6 at the 99.9th percentile, slopes to 1e-4 at the 99th (β <= 50), everything finite."""
    errors, slope_errors = [], []
    for beta in BETAS:
        logits, rho, expected, expected_slope = _reference(beta)
        logits.requires_grad_()
        zeta = Exponential(beta).sample(logits, rho)
        (slope,) = torch.autograd.grad(zeta.sum(), logits)
        assert torch.isfinite(zeta).all() and torch.isfinite(slope).all()
        assert ((zeta >= 0) & (zeta <= 1)).all()
        errors.append(np.abs(zeta.detach().double().numpy() - expected))
        in_range = [(float(s), t) for s, t in zip(slope, expected_slope, strict=True) if 1e-30 <= t <= 1e30]
        if beta <= 50:
            slope_errors.append([float(abs(s - t) / t) for s, t in in_range])
    assert np.quantile(np.concatenate(errors), 0.999) <= 5e-6
    assert np.quantile(np.concatenate(slope_errors), 0.99) <= 1e-4


def test_printed_formula_fails_in_float32_where_ours_does_not() -> None:
    """The reason for the rewriting: Eq. 3 as typed is non-finite at about one point in six at β = 8."""
    logits, rho = torch.meshgrid(
        torch.linspace(-18, 18, 73), torch.tensor([1e-4, 0.01, 0.5, 0.99, 0.9999]), indexing="ij"
    )
    d, q = math.exp(-8.0), torch.sigmoid(logits)
    b = (rho + d * (q - rho)) / (1 - q) - 1
    printed = -torch.log((-b + torch.sqrt(b * b + 4 * q * d / (1 - q))) / 2) / 8.0
    assert (~torch.isfinite(printed)).float().mean() > 0.02
    assert torch.isfinite(Exponential(8.0).sample(logits, rho)).all()


def test_eq3_printed_formula_in_float64() -> None:
    rho = torch.linspace(0.01, 0.99, 99, dtype=torch.float64)
    logits = torch.linspace(-4, 4, 99, dtype=torch.float64)
    d, q = math.exp(-5.0), torch.sigmoid(logits)
    b = (rho + d * (q - rho)) / (1 - q) - 1
    printed = -torch.log((-b + torch.sqrt(b * b + 4 * q * d / (1 - q))) / 2) / 5.0
    torch.testing.assert_close(Exponential(5.0).sample(logits, rho), printed, rtol=1e-11, atol=1e-12)


def test_per_unit_beta_equals_one_at_a_time() -> None:
    beta = torch.tensor([0.01, 0.9, 1.1, 8.0, 60.0, 900.0])
    logits = torch.linspace(-6, 6, 25)[:, None].expand(25, 6).contiguous().requires_grad_()
    rho = torch.full((25, 6), 0.37)
    zeta = Exponential(beta).sample(logits, rho)
    (slope,) = torch.autograd.grad(zeta.sum(), logits)
    for unit, b in enumerate(beta.tolist()):
        column = logits[:, unit].detach().requires_grad_()
        alone = Exponential(b).sample(column, rho[:, unit])
        torch.testing.assert_close(zeta[:, unit], alone, rtol=1e-5, atol=1e-6)
        torch.testing.assert_close(slope[:, unit], torch.autograd.grad(alone.sum(), column)[0], rtol=1e-4, atol=1e-7)
        point = torch.full((25,), 0.2)
        torch.testing.assert_close(
            Exponential(beta).log_prob(point[:, None], logits)[:, unit], Exponential(b).log_prob(point, column)
        )


@pytest.mark.parametrize("beta", [0.0, -1.0, math.nan, math.inf, torch.tensor([1.0, 0.0])])
def test_bad_beta_is_named(beta: float) -> None:
    with pytest.raises(ValueError, match="beta must be finite and > 0, got .*Binary"):
        Exponential(beta)


def test_per_unit_beta_of_wrong_shape_is_named() -> None:
    with pytest.raises(ValueError, match=r"shapes do not broadcast: logits \(2, 3\), rho \(2, 3\), beta \(4,\)"):
        Exponential(torch.full((4,), 8.0)).sample(torch.zeros(2, 3), torch.full((2, 3), 0.5))


def test_zeta_outside_the_support_is_named() -> None:
    with pytest.raises(ValueError, match="zeta must be in the support .* got 1.5"):
        Exponential(8.0).log_prob(torch.tensor([0.5, 1.5]), torch.zeros(2))


def test_validation_can_be_turned_off() -> None:
    unchecked = Exponential(8.0, validate_args=False)
    unchecked.sample(torch.zeros(2), torch.tensor([0.5, 1.5]))  # garbage in, garbage out, no cost
    assert unchecked == Exponential(8.0)
