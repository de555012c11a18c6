"""The K-sample bound with a relaxed RBM prior: below log p(x), rising with K, its gradient unbiased.

Quadrature over all ζ of all K samples is the truth, with the prior's mean field converged in numpy; log p(x) has the
prior by enumeration.
"""

from functools import cache
from typing import NamedTuple

import numpy as np
import pytest
import torch
from torch import Tensor

from dvaepp.numerics import uniform
from dvaepp.objectives import importance_weighted, relaxed_kl
from dvaepp.priors import RBM
from dvaepp.smoothing import Exponential
from tests import relaxed_oracle as oracle
from tests.enumeration import Array

DRAWS = 1_000_000
CHUNKS = 200
STANDARD_ERRORS = 5
SMOOTHING = Exponential(oracle.BETA, validate_args=False)


class Mean(NamedTuple):
    value: Array
    error: Array


def _log_weights(parameters: Tensor, rho: Tensor, path_only: bool) -> Tensor:
    """log p(x|ζ) - (log q(ζ|x) - log p(ζ)), differentiable in all parameters; log Z is exact."""
    prior = RBM(1, 1).double()
    left, right, weight = parameters[3], parameters[4], parameters[5]
    prior = _with(prior, bias_left=left.reshape(1), bias_right=right.reshape(1), weight=weight.reshape(1, 1))
    log_z = torch.logsumexp(torch.stack([0 * left, left, right, left + right + weight]), 0)
    first = parameters[0].expand(len(rho), 1)
    zeta1 = SMOOTHING.sample(first, rho[:, :1])
    _, logits = oracle.log_weights(torch, parameters, torch.cat([zeta1, zeta1], 1), 0.0)
    zeta2 = SMOOTHING.sample(logits[:, 1:], rho[:, 1:])
    log_x, logits = oracle.log_weights(torch, parameters, torch.cat([zeta1, zeta2], 1), 0.0)
    groups = [first, logits[:, 1:]]
    return log_x - relaxed_kl(prior, groups, [zeta1, zeta2], SMOOTHING, log_z, path_only=path_only)


def _with(prior: RBM, **tensors: Tensor) -> RBM:
    """The prior with tensors that carry a graph in place of its parameters."""
    for name, value in tensors.items():
        delattr(prior, name)
        setattr(prior, name, value)
    prior.as_states = lambda z: z  # type: ignore[method-assign]  # which asks the parameters for their type
    return prior


def _noise(seed: int, rows: int = DRAWS) -> Tensor:
    return uniform(rows, 2, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@cache
def _all_log_weights() -> Tensor:
    with torch.no_grad():
        return _log_weights(torch.tensor(oracle.PARAMETERS), _noise(1), True)


def _bound(k: int) -> Mean:
    values = importance_weighted(_all_log_weights()[: DRAWS // k * k].reshape(k, -1))
    return Mean(values.mean().item(), values.std().item() / values.numel() ** 0.5)


@pytest.mark.parametrize("k", [1, 2])
def test_bound_equals_quadrature(k: int) -> None:
    value, error = _bound(k)
    assert abs(value - oracle.k_sample_bound(oracle.PARAMETERS, k)) < STANDARD_ERRORS * error


def test_bound_rises_with_k_and_stays_below_log_evidence() -> None:
    """A million weights in groups of K; the mean field keeps even K = 64 below log p(x)."""
    evidence = oracle.k_sample_bound(oracle.PARAMETERS, 0, exact_prior=True)
    means = [_bound(k) for k in (1, 2, 4, 16, 64)]
    print(f"log p(x) {evidence:.4f};", ", ".join(f"{m.value:.4f} ± {m.error:.4f}" for m in means))
    for low, high in zip(means, means[1:], strict=False):
        assert high.value >= low.value - STANDARD_ERRORS * (low.error**2 + high.error**2) ** 0.5
    assert all(value <= evidence + STANDARD_ERRORS * error for value, error in means)
    assert means[-1].value > means[0].value + 10 * STANDARD_ERRORS * means[0].error


def _gradient(k: int, path_only: bool) -> Mean:
    """Mean over a million draws, in chunks whose spread gives the standard error."""
    rows = []
    for rho in _noise(2).split(DRAWS // CHUNKS):
        parameters = torch.tensor(oracle.PARAMETERS, requires_grad=True)
        log_w = _log_weights(parameters, rho, path_only).reshape(k, -1)
        bound = importance_weighted(log_w).mean()
        rows.append(torch.autograd.grad(bound, parameters)[0].numpy())
    table = np.array(rows)
    return Mean(table.mean(0), table.std(0, ddof=1) / CHUNKS**0.5)


@cache
def _truth(k: int) -> Array:
    step = 1e-4 * np.eye(len(oracle.PARAMETERS))
    return np.array(
        [
            (oracle.k_sample_bound(oracle.PARAMETERS + s, k) - oracle.k_sample_bound(oracle.PARAMETERS - s, k)) / 2e-4
            for s in step
        ]
    )


@pytest.mark.parametrize("k, path_only", [(1, True), (1, False), (2, False)])
def test_gradient_is_unbiased(k: int, path_only: bool) -> None:
    """Within 5 standard errors for every parameter of posterior, prior and decoder (15 numbers: rate 1e-5)."""
    value, error = _gradient(k, path_only)
    distance = np.abs(value - _truth(k)) / error
    print(f"K = {k}, path only {path_only}: largest distance {distance.max():.1f} se, se of q {error[:3].round(5)}")
    assert distance.max() < STANDARD_ERRORS


def test_weights_without_the_score_are_caught() -> None:
    value, error = _gradient(2, True)
    assert (np.abs(value - _truth(2)) / error)[:3].max() > 2 * STANDARD_ERRORS
