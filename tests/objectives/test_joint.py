"""Eq. 4 against sums over every z and quadrature over ζ: value, bound, gradients; closed form and extremes.

The draws from the model of `bounds_oracle` serve test_marginal.py and test_importance.py as well.
"""

from collections.abc import Callable
from functools import cache
from typing import NamedTuple

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.distributions import Bernoulli, kl_divergence
from torch.nn.functional import binary_cross_entropy_with_logits

from dvaepp.numerics import uniform
from dvaepp.objectives import joint, joint_per_group
from dvaepp.smoothing import Exponential
from tests import bounds_oracle as oracle
from tests.enumeration import Array

BATCHES, DRAWS = 100, 2000
STANDARD_ERRORS = 5  # failure rate about 3e-6 per component; seeds are fixed, so a test never flickers
SMOOTHING = Exponential(oracle.MODEL_BETA)


class Draw(NamedTuple):
    """Samples of the posterior with all that a bound needs; every tensor follows the parameters."""

    logits: list[Tensor]
    prior_logits: list[Tensor]
    zeta: list[Tensor]
    log_likelihood: Tensor


class Estimate(NamedTuple):
    """Mean and standard error of a value and of its gradient, in the order of `truth`."""

    mean: Array
    error: Array


def draw(parameters: Tensor, rho: Tensor) -> Draw:
    p = oracle.named(parameters)
    first = p["posterior_bias"][:2].expand(len(rho), 2)
    zeta1 = SMOOTHING.sample(first, rho[:, :2])
    second = oracle.second_logits(torch, p["posterior_bias"], p["posterior_slope"], zeta1)
    zeta2 = SMOOTHING.sample(second, rho[:, 2:])
    prior = [p["prior_bias"][:2], oracle.second_logits(torch, p["prior_bias"], p["prior_slope"], zeta1)]
    pixels = oracle.pixel_logits(torch, p, torch.cat([zeta1, zeta2], 1))
    log_x = -binary_cross_entropy_with_logits(pixels, torch.tensor(oracle.PIXELS).expand_as(pixels), reduction="none")
    return Draw([first, second], prior, [zeta1, zeta2], log_x.sum(-1))


@cache
def estimate(bound: Callable[[Draw], Tensor], batches: int = BATCHES) -> Estimate:
    """Means over batches of DRAWS samples each; their spread gives the standard error of the total mean."""
    generator = torch.Generator().manual_seed(7)
    rows = []
    for _ in range(batches):
        parameters = torch.tensor(oracle.MODEL_PARAMETERS, requires_grad=True)
        value = bound(draw(parameters, uniform(DRAWS, 4, generator=generator, dtype=torch.float64)))
        assert value.shape == (DRAWS,)
        (grad,) = torch.autograd.grad(value.mean(), parameters)
        rows.append([value.mean().item(), *grad.tolist()])
    table = np.array(rows)
    return Estimate(table.mean(0), table.std(0, ddof=1) / batches**0.5)


@cache
def truth() -> Array:
    """Rows: the value, then its slope in each parameter; columns: the fields of `Bounds`."""
    return oracle.with_gradient(lambda p: np.array(oracle.bounds(p)), oracle.MODEL_PARAMETERS)


def deviation(bound: Callable[[Draw], Tensor], name: str, rows: slice, batches: int = BATCHES) -> float:
    """Largest distance from the truth in standard errors; terms without noise may differ by the rounding of slopes."""
    mean, error = estimate(bound, batches)
    expected = truth()[:, oracle.Bounds._fields.index(name)]
    return float((np.abs(mean - expected) / np.maximum(error, 1e-7))[rows].max())


VALUE = slice(0, 1)
parts = pytest.mark.parametrize("part", ["posterior", "prior", "decoder"])


def joint_kl(sample: Draw) -> Tensor:
    return joint(sample.logits, sample.prior_logits)


def joint_elbo(sample: Draw) -> Tensor:
    return sample.log_likelihood - joint_kl(sample)


def _swapped(sample: Draw) -> Tensor:
    prior = [p.expand_as(q) for p, q in zip(sample.prior_logits, sample.logits, strict=True)]
    return sample.log_likelihood - joint(prior, sample.logits)


def _cut_at_zeta(sample: Draw) -> Tensor:
    """The KL of the second group with logits that do not follow ζ₁."""
    first, second = joint_per_group(sample.logits, [p.detach() for p in sample.prior_logits])
    return sample.log_likelihood - first - second.detach()


def test_the_quadrature_has_converged() -> None:
    coarse, fine = (np.array(oracle.bounds(oracle.MODEL_PARAMETERS, nodes)) for nodes in (10, 14))
    np.testing.assert_allclose(coarse, fine, rtol=0, atol=1e-7)


def test_app_d_joint_elbo_is_below_marginal_elbo_is_below_log_evidence() -> None:
    exact = oracle.bounds(oracle.MODEL_PARAMETERS)
    assert exact.joint_elbo + 0.05 < exact.marginal_elbo < exact.log_evidence - 0.05


def test_eq4_equals_enumeration() -> None:
    assert deviation(joint_kl, "joint_kl", VALUE) < STANDARD_ERRORS
    assert deviation(joint_elbo, "joint_elbo", VALUE) < STANDARD_ERRORS
    assert estimate(joint_elbo).error[0] < 0.005, "the test must see a bias of 0.05 nat"


@parts
def test_eq4_gradient_equals_enumeration(part: str) -> None:
    assert deviation(joint_elbo, "joint_elbo", oracle.part(part)) < STANDARD_ERRORS


def test_enumeration_sees_swapped_arguments() -> None:
    for rows in (VALUE, oracle.part("posterior"), oracle.part("prior")):
        assert deviation(_swapped, "joint_elbo", rows, BATCHES // 4) > 2 * STANDARD_ERRORS


def test_enumeration_sees_a_gradient_cut_at_zeta() -> None:
    assert deviation(_cut_at_zeta, "joint_elbo", VALUE, BATCHES // 4) < STANDARD_ERRORS
    assert deviation(_cut_at_zeta, "joint_elbo", oracle.part("posterior"), BATCHES // 4) > 2 * STANDARD_ERRORS


def test_groups_add_up_and_prior_parameters_broadcast() -> None:
    generator = torch.Generator().manual_seed(0)
    logits = [torch.randn(5, n, generator=generator, dtype=torch.float64) for n in (3, 1)]
    prior = [torch.randn(3, generator=generator, dtype=torch.float64, requires_grad=True), torch.zeros(5, 1).double()]
    groups = joint_per_group(logits, prior)
    assert groups.shape == (2, 5)
    torch.testing.assert_close(joint(logits, prior), groups.sum(0))
    for group, q, p in zip(groups, logits, prior, strict=True):
        expected = kl_divergence(Bernoulli(logits=q), Bernoulli(logits=p.detach().expand_as(q))).sum(-1)
        torch.testing.assert_close(group.detach(), expected, rtol=0, atol=1e-12)
    assert torch.autograd.grad(groups.sum(), prior[0])[0].shape == (3,)


def test_kl_and_gradients_are_exact_in_float32_at_extremes() -> None:
    """Against float64: q and p agree and disagree at ±100; equal logits give exactly zero."""
    values = torch.tensor([-100.0, -30.0, -1.0, 0.0, 2.0, 30.0, 100.0])
    grid = torch.cartesian_prod(values, values)
    results = []
    for dtype in (torch.float32, torch.float64):
        q, p = (column[:, None].to(dtype).requires_grad_() for column in grid.unbind(1))
        kl = joint([q], [p])
        results.append([kl, *torch.autograd.grad(kl.sum(), [q, p])])
        assert (kl >= 0).all() and (kl[grid[:, 0] == grid[:, 1]] == 0).all()
    for single, double in zip(*results, strict=True):
        torch.testing.assert_close(single.double(), double, rtol=2e-6, atol=1e-7)
    assert results[0][0].max().item() == 100  # at ±100 against ∓100: log of a probability e^-100


def test_certain_units_have_a_finite_kl() -> None:
    q = torch.tensor([[torch.inf, -torch.inf]], requires_grad=True)
    p = torch.tensor([0.0, 1.0], requires_grad=True)
    kl = joint([q], [p])
    assert kl.item() == pytest.approx(np.log(2) + np.log1p(np.e))
    to_q, to_p = torch.autograd.grad(kl.sum(), [q, p])
    assert to_q.tolist() == [[0, 0]] and to_p.tolist() == pytest.approx([-0.5, np.e / (1 + np.e)])


@pytest.mark.parametrize(
    ("logits", "prior"),
    [
        ([(4, 2)], [(3,)]),
        ([(4, 2)], [(5, 2)]),
        ([(1, 2)], [(5, 2)]),
        ([(4, 2), (4, 2)], [(2,)]),
        ([(4, 2), (5, 2)], [(2,), (2,)]),
        ([], []),
    ],
    ids=str,
)
def test_shapes_that_do_not_fit_are_named(logits: list[tuple[int, ...]], prior: list[tuple[int, ...]]) -> None:
    with pytest.raises(ValueError) as error:
        joint([torch.zeros(s) for s in logits], [torch.zeros(s) for s in prior])
    assert str(error.value).endswith(f"got {logits} and {prior}")
