"""The K-sample bound: between the marginal ELBO and log p(x), rising with K, stable at extreme weights."""

from functools import cache
from typing import NamedTuple

import numpy as np
import pytest
import torch
from torch import Tensor

from dvaepp.numerics import uniform
from dvaepp.objectives import importance_weighted, marginal
from tests import bounds_oracle as oracle
from tests.objectives.test_joint import SMOOTHING, STANDARD_ERRORS, draw

KS = [1, 2, 4, 16, 64]
DRAWS = 256_000


class Mean(NamedTuple):
    value: float
    error: float


@cache
def _log_weights() -> Tensor:
    rho = uniform(DRAWS, 4, generator=torch.Generator().manual_seed(7), dtype=torch.float64)
    sample = draw(torch.tensor(oracle.MODEL_PARAMETERS), rho)
    return sample.log_likelihood - marginal(sample.logits, sample.prior_logits, sample.zeta, SMOOTHING)


def _bound(k: int) -> Mean:
    values = importance_weighted(_log_weights().reshape(k, -1))
    return Mean(values.mean().item(), values.std().item() / values.numel() ** 0.5)


def test_one_sample_is_the_marginal_elbo() -> None:
    value, error = _bound(1)
    assert torch.equal(importance_weighted(_log_weights()[None]), _log_weights())
    assert abs(value - oracle.bounds(oracle.MODEL_PARAMETERS).marginal_elbo) < STANDARD_ERRORS * error


def test_the_bound_rises_with_k_towards_log_evidence() -> None:
    """256 000 weights in groups of K; every step of K at least as high within 5 standard errors."""
    evidence = oracle.bounds(oracle.MODEL_PARAMETERS).log_evidence
    means = [_bound(k) for k in KS]
    for low, high in zip(means, means[1:], strict=False):
        assert high.value >= low.value - STANDARD_ERRORS * (low.error**2 + high.error**2) ** 0.5
    assert all(value <= evidence + STANDARD_ERRORS * error for value, error in means)
    assert means[-1].value - means[0].value > 10 * STANDARD_ERRORS * means[0].error
    assert evidence - means[-1].value < 0.2 * (evidence - means[0].value)


def test_the_mean_weight_is_the_evidence() -> None:
    """E[w] = p(x): all weights as one sample of K = 256 000, by the delta method."""
    weights = _log_weights().exp()
    error = (weights.std() / weights.mean() / DRAWS**0.5).item()
    assert error < 0.01
    all_of_them = importance_weighted(_log_weights()[:, None]).item()
    assert abs(all_of_them - oracle.bounds(oracle.MODEL_PARAMETERS).log_evidence) < STANDARD_ERRORS * error


def test_gradient_is_the_normalised_weights() -> None:
    log_weights = torch.tensor([[0.0, -1000.0], [np.log(3), -1000.0]], requires_grad=True)
    bound = importance_weighted(log_weights)
    assert bound.tolist() == pytest.approx([np.log(2), -1000.0])
    (grad,) = torch.autograd.grad(bound.sum(), log_weights)
    assert grad.tolist() == [pytest.approx([0.25, 0.5]), pytest.approx([0.75, 0.5])]


def test_weights_need_the_score() -> None:
    """The gradient of log mean w without it is another one: 3200 bounds of K = 10, the same draws, paired."""
    rho = uniform(32_000, 4, generator=torch.Generator().manual_seed(8), dtype=torch.float64)
    rows = []
    for chunk in rho.split(1000):
        found = []
        for path_only in (False, True):
            parameters = torch.tensor(oracle.MODEL_PARAMETERS, requires_grad=True)
            sample = draw(parameters, chunk)
            kl = marginal(sample.logits, sample.prior_logits, sample.zeta, SMOOTHING, path_only=path_only)
            bound = importance_weighted((sample.log_likelihood - kl).reshape(10, -1)).mean()
            found.append(torch.autograd.grad(bound, parameters)[0].numpy())
        rows.append(found[0] - found[1])
    table = np.array(rows)[:, slice(oracle.part("posterior").start - 1, oracle.part("posterior").stop - 1)]
    distance = np.abs(table.mean(0)) / (table.std(0, ddof=1) / len(table) ** 0.5)
    assert distance.max() > 2 * STANDARD_ERRORS


def test_weights_beyond_float32_neither_vanish_nor_overflow() -> None:
    log_weights = torch.tensor([[-1e4, 1e4, -torch.inf], [-1e4, 0.0, 1.0]], requires_grad=True)
    bound = importance_weighted(log_weights)
    assert bound.tolist() == pytest.approx([-1e4, 1e4 - np.log(2), 1 - np.log(2)])
    (grad,) = torch.autograd.grad(bound.sum(), log_weights)
    np.testing.assert_allclose(grad, [[0.5, 1, 0], [0.5, 0, 1]], rtol=1e-6)
    assert importance_weighted(torch.full((3, 1), -torch.inf)).tolist() == [-torch.inf]


@pytest.mark.parametrize("shape", [(3,), (), (0, 2), (2, 3, 4)], ids=str)
def test_shapes_that_do_not_fit_are_named(shape: tuple[int, ...]) -> None:
    with pytest.raises(ValueError) as error:
        importance_weighted(torch.zeros(shape))
    assert str(error.value) == f"log_weights must have shape (samples >= 1, batch), got {shape}"
