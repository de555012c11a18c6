"""Eq. 5 against quadrature over ζ with z summed out: value, bound, gradients, variants that fail."""

import numpy as np
import pytest
import torch
from torch import Tensor

from dvaepp.numerics import uniform
from dvaepp.objectives import joint, marginal, marginal_per_group
from dvaepp.smoothing import Exponential, Logistic
from tests import bounds_oracle as oracle
from tests.objectives.test_joint import (
    BATCHES,
    SMOOTHING,
    STANDARD_ERRORS,
    VALUE,
    Draw,
    deviation,
    estimate,
    joint_elbo,
    parts,
)


def _kl(sample: Draw) -> Tensor:
    return marginal(sample.logits, sample.prior_logits, sample.zeta, SMOOTHING)


def _elbo(sample: Draw) -> Tensor:
    return sample.log_likelihood - _kl(sample)


def _path(sample: Draw) -> Tensor:
    kl = marginal(sample.logits, sample.prior_logits, sample.zeta, SMOOTHING, path_only=True)
    return sample.log_likelihood - kl


def _detached(sample: Draw) -> Tensor:
    zeta = [s.detach() for s in sample.zeta]
    return sample.log_likelihood - marginal(sample.logits, sample.prior_logits, zeta, SMOOTHING)


def _swapped(sample: Draw) -> Tensor:
    prior = [p.expand_as(q) for p, q in zip(sample.prior_logits, sample.logits, strict=True)]
    return sample.log_likelihood - marginal(prior, sample.logits, sample.zeta, SMOOTHING)


def test_eq5_equals_enumeration() -> None:
    assert deviation(_kl, "marginal_kl", VALUE) < STANDARD_ERRORS
    assert deviation(_elbo, "marginal_elbo", VALUE) < STANDARD_ERRORS
    assert estimate(_elbo).error[0] < 0.005, "the test must see a bias of 0.05 nat"


@parts
def test_eq5_gradient_equals_enumeration(part: str) -> None:
    assert deviation(_elbo, "marginal_elbo", oracle.part(part)) < STANDARD_ERRORS


@parts
def test_the_path_derivative_equals_enumeration(part: str) -> None:
    assert deviation(_path, "marginal_elbo", VALUE) < STANDARD_ERRORS
    assert deviation(_path, "marginal_elbo", oracle.part(part)) < STANDARD_ERRORS


def test_the_score_only_adds_noise() -> None:
    """The same draws with and without it: variance of the posterior's gradient, summed over its parameters."""
    rows = oracle.part("posterior")
    whole, path = ((estimate(bound).error[rows] ** 2).sum() for bound in (_elbo, _path))
    assert path < 0.9 * whole, f"{path / whole:.2f} of the variance"


def test_path_only_matters_to_no_value_and_to_q_alone() -> None:
    generator = torch.Generator().manual_seed(3)
    q, p = (torch.randn(5, 3, generator=generator).requires_grad_() for _ in range(2))
    zeta = SMOOTHING.sample(q, uniform(5, 3, generator=generator))
    whole, path = (marginal([q], [p], [zeta], SMOOTHING, path_only=only) for only in (False, True))
    assert torch.equal(whole, path)
    slopes = [torch.autograd.grad(kl.sum(), [q, p], retain_graph=True) for kl in (whole, path)]
    assert torch.equal(slopes[0][1], slopes[1][1]) and not torch.allclose(slopes[0][0], slopes[1][0], rtol=0.01)


def test_app_d_estimates_keep_the_order_of_the_bounds() -> None:
    joint_, marginal_ = estimate(joint_elbo), estimate(_elbo)
    evidence = oracle.bounds(oracle.MODEL_PARAMETERS).log_evidence
    assert joint_.mean[0] + 5 * joint_.error[0] < marginal_.mean[0] - 5 * marginal_.error[0]
    assert marginal_.mean[0] + 5 * marginal_.error[0] < evidence


def test_detached_zeta_gives_the_right_value_and_a_wrong_gradient() -> None:
    assert deviation(_detached, "marginal_elbo", VALUE, BATCHES // 4) < STANDARD_ERRORS
    assert deviation(_detached, "marginal_elbo", oracle.part("prior"), BATCHES // 4) < STANDARD_ERRORS
    assert deviation(_detached, "marginal_elbo", oracle.part("posterior"), BATCHES // 4) > 2 * STANDARD_ERRORS


def test_enumeration_sees_swapped_arguments() -> None:
    assert deviation(_swapped, "marginal_elbo", VALUE, BATCHES // 4) > 2 * STANDARD_ERRORS


def test_groups_add_up_and_prior_parameters_broadcast() -> None:
    generator = torch.Generator().manual_seed(0)
    logits = [torch.randn(5, n, generator=generator) for n in (3, 1)]
    zeta = [uniform(5, n, generator=generator) for n in (3, 1)]
    prior = [torch.randn(3, generator=generator), torch.zeros(5, 1)]
    groups = marginal_per_group(logits, prior, zeta, SMOOTHING)
    assert groups.shape == (2, 5)
    torch.testing.assert_close(marginal(logits, prior, zeta, SMOOTHING), groups.sum(0))
    alone = marginal(logits[1:], prior[1:], zeta[1:], SMOOTHING)
    torch.testing.assert_close(alone, groups[1])
    assert not marginal(logits, logits, zeta, SMOOTHING).any(), "equal q and p differ nowhere"


def test_a_sharp_smoothing_makes_both_kls_equal() -> None:
    """β = 200: ζ tells z almost surely, and the mean over ζ is the Bernoulli KL (4000 draws, 5 standard errors)."""
    rho = uniform(4000, 3, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    logits = torch.tensor([-1.0, 0.5, 2.0]).double().expand(4000, 3)
    prior, sharp = torch.tensor([0.3, -0.8, 1.0]).double(), Exponential(200.0)
    kl = marginal([logits], [prior], [sharp.sample(logits, rho)], sharp)
    expected = joint([logits[:1]], [prior]).item()
    assert abs(kl.mean().item() - expected) < 5 * kl.std().item() / 4000**0.5 + 1e-3


@pytest.mark.parametrize("smoothing", [Exponential(8.0), Exponential(100.0), Logistic(loc0=0.0, loc1=1.0, scale=0.1)])
def test_kl_and_gradients_stay_finite_in_float32_at_extremes(smoothing: Exponential | Logistic) -> None:
    logits = torch.tensor([[100.0, -100.0, 100.0, 0.0], [torch.inf, -torch.inf, 30.0, -30.0]], requires_grad=True)
    prior = torch.tensor([-100.0, 100.0, 100.0, 50.0], requires_grad=True)
    rho = torch.tensor([[0.01, 0.99, 0.5, 0.5]] * 2)
    kl = marginal([logits], [prior], [smoothing.sample(logits, rho)], smoothing)
    assert kl.isfinite().all()
    assert all(g.isfinite().all() for g in torch.autograd.grad(kl.sum(), [logits, prior]))


def test_float32_agrees_with_float64() -> None:
    generator = torch.Generator().manual_seed(2)
    logits, prior = (20 * torch.randn(200, 4, generator=generator) for _ in range(2))
    zeta = Exponential(8.0).sample(logits, uniform(200, 4, generator=generator))
    single = marginal([logits], [prior], [zeta], Exponential(8.0))
    double = marginal([logits.double()], [prior.double()], [zeta.double()], Exponential(8.0))
    np.testing.assert_allclose(single, double, rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize(
    ("logits", "prior", "zeta", "got"),
    [
        ([(4, 2)], [(3,)], [(4, 2)], "got [(4, 2)] and [(3,)]"),
        ([(4, 2)], [(2,)], [(4, 1)], "got [(4, 2)] and [(4, 1)]"),
        ([(4, 2)], [(2,)], [(2,)], "got [(4, 2)] and [(2,)]"),
        ([(4, 2)], [(2,)], [], "got [(4, 2)] and []"),
        ([], [], [], "got [] and []"),
    ],
    ids=str,
)
def test_shapes_that_do_not_fit_are_named(
    logits: list[tuple[int, ...]], prior: list[tuple[int, ...]], zeta: list[tuple[int, ...]], got: str
) -> None:
    q, p, samples = ([torch.full(s, 0.5) for s in shapes] for shapes in (logits, prior, zeta))
    with pytest.raises(ValueError) as error:
        marginal(q, p, samples, SMOOTHING)
    assert str(error.value).endswith(got)
