"""The Gaussian-integral prior equals enumeration over 8 units, and refuses couplings that its β does not cover."""

import numpy as np
import pytest
import torch

from dvaepp.errors import UsageError
from dvaepp.objectives import gaussian_integral_kl, gaussian_integral_log_prior
from dvaepp.smoothing import Gaussian
from tests import relaxed_oracle as oracle
from tests.enumeration import log_partition
from tests.objectives.test_relaxed import UNITS, Make, _numbers, _zeta, priors


@priors
@pytest.mark.parametrize("beta", [8.0, 20.0, 40.0])
def test_log_prior_equals_enumeration(make: Make, beta: float) -> None:
    prior, zeta = make(), _zeta("gaussian", beta**-0.5)
    bias, matrix = _numbers(prior)
    expected = [oracle.gaussian_integral(bias, matrix, row, beta) for row in zeta.numpy()]
    found = gaussian_integral_log_prior(prior, zeta, Gaussian(beta**-0.5), log_partition(bias, matrix))
    np.testing.assert_allclose(found.detach().numpy(), expected, rtol=0, atol=1e-8)


@priors
def test_kl_is_log_q_minus_log_p_with_gradients(make: Make) -> None:
    prior, smoothing = make(), Gaussian(0.2)
    zeta = _zeta("gaussian", 0.2, rows=5).requires_grad_()
    logits = torch.linspace(-2, 2, 5 * UNITS, dtype=torch.float64).reshape(5, UNITS).requires_grad_()
    groups = [list(t.split(4, 1)) for t in (logits, zeta)]
    found = gaussian_integral_kl(prior, *groups, smoothing, 0.3, path_only=False)
    expected = smoothing.log_prob(zeta, logits).sum(1) - gaussian_integral_log_prior(prior, zeta, smoothing, 0.3)
    torch.testing.assert_close(found, expected)
    inputs = [zeta, logits, *prior.parameters()]
    for mine, theirs in zip(*(torch.autograd.grad(t.sum(), inputs) for t in (found, expected)), strict=True):
        torch.testing.assert_close(mine, theirs)


@priors
def test_couplings_beyond_beta_are_refused_with_the_smallest_that_does(make: Make) -> None:
    prior, zeta = make(), _zeta("gaussian", 0.5, rows=2)
    least = -np.linalg.eigvalsh(_numbers(prior)[1])[0]
    for beta, fits in ((least * 1.001, True), (least * 0.999, False)):
        if fits:
            assert gaussian_integral_log_prior(prior, zeta, Gaussian(beta**-0.5), 0.0).isfinite().all()
            continue
        with pytest.raises(UsageError, match=f"it must be above {least:.6g}, "):
            gaussian_integral_log_prior(prior, zeta, Gaussian(beta**-0.5), 0.0)
