"""Rolfe's KL against enumeration over z and quadrature over ζ given z = 1: value, gradients, and variants that fail."""

from collections.abc import Callable, Sequence
from functools import cache
from itertools import combinations
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from torch import Tensor

from dvaepp.numerics import bernoulli_entropy, uniform
from dvaepp.objectives import rolfe_kl
from dvaepp.priors import RBM, BoltzmannMachine, BoltzmannPrior
from dvaepp.smoothing import SpikeExponential
from tests import enumeration
from tests.bounds_oracle import spike_kl, with_gradient
from tests.enumeration import Array

BETA = 3.0
BATCHES, DRAWS = 100, 2000
STANDARD_ERRORS = 5  # failure rate about 3e-6 per component; seeds are fixed, so a test never flickers

RNG = np.random.default_rng(6)  # with 3 the two boundary terms of RBM (1, 3) happen to cancel
OFFSETS = RNG.normal(size=4)
PRIOR_BIAS = RNG.normal(size=4)
PRIOR_WEIGHT = RNG.normal(scale=1.5, size=(4, 4))
# The posterior correlates units with the sign of their coupling, so that wrong terms of several pairs do not cancel.
SLOPE, BEND = np.sign(PRIOR_WEIGHT) * RNG.uniform(1, 3, size=(2, 4, 4))

KL = Callable[[BoltzmannPrior, Sequence[Tensor], Sequence[Tensor], float], Tensor]


class Case(NamedTuple):
    kind: str
    sizes: tuple[int, ...]

    @property
    def units(self) -> int:
        return sum(self.sizes)

    @property
    def couplings(self) -> list[tuple[int, int]]:
        pairs = list(combinations(range(self.units), 2))
        return pairs if self.kind == "machine" else [(i, j) for i, j in pairs if i < 2 <= j]

    @property
    def slopes(self) -> list[tuple[int, int]]:
        """Pairs of a unit and one of a later group, whose logit its ζ moves."""
        group = [a for a, size in enumerate(self.sizes) for _ in range(size)]
        return [(i, j) for i, j in combinations(range(self.units), 2) if group[i] < group[j]]


CASES = [
    Case("rbm", (2, 2)),
    Case("rbm", (1, 3)),
    Case("machine", (1, 2)),
    Case("machine", (2, 2)),
    Case("machine", (1, 1, 1, 1)),
]
cases = pytest.mark.parametrize("case", CASES, ids=str)


def _logits(xp: ModuleType, sizes: Sequence[int], group: int, earlier: Any, offsets: Any, slope: Any) -> Any:
    """Logits of q(z_a | x, ζ_<a), a smooth function of earlier ζ, for numpy and for torch."""
    start = sum(sizes[:group])
    units = slice(start, start + sizes[group])
    bend = xp.asarray(BEND[:start, units])
    return offsets[units] + earlier @ slope[:start, units] + xp.tanh(earlier @ bend)


# The truth: numpy only.


def _parameters(case: Case) -> Array:
    """Offsets and slopes of the posterior, biases and weights of the prior."""
    n = case.units
    slopes, weights = [SLOPE[pair] for pair in case.slopes], [PRIOR_WEIGHT[pair] for pair in case.couplings]
    return np.concatenate([OFFSETS[:n], slopes, PRIOR_BIAS[:n], weights])


def _matrix(n: int, pairs: list[tuple[int, int]], values: Array) -> Array:
    matrix = np.zeros((n, n))
    for pair, value in zip(pairs, values, strict=True):
        matrix[pair] = value
    return matrix


def _true_kl(case: Case, parameters: Array, nodes: int = 14) -> Array:
    n, edges, sizes = case.units, len(case.slopes), case.sizes
    offsets, slope, bias, weights = np.split(parameters, [n, n + edges, 2 * n + edges])
    slope, upper = _matrix(n, case.slopes, slope), _matrix(n, case.couplings, weights)

    def logits(group: int, earlier: Array) -> Array:
        return _logits(np, sizes, group, earlier, offsets, slope)

    return np.array(spike_kl(bias, upper + upper.T, sizes, logits, BETA, nodes))


@cache
def _truth(case: Case) -> Array:
    return with_gradient(lambda p: _true_kl(case, p), _parameters(case))


# The estimate: the code under test, averaged.


class Estimate(NamedTuple):
    """Mean and standard error of the KL and of its gradient, in the order of `_truth`."""

    mean: Array
    error: Array


def _prior(case: Case) -> BoltzmannPrior:
    bias = torch.tensor(PRIOR_BIAS[: case.units])
    upper = torch.tensor(_matrix(case.units, case.couplings, np.array([PRIOR_WEIGHT[pair] for pair in case.couplings])))
    prior: BoltzmannPrior
    if case.kind == "rbm":
        values = {"bias_left": bias[:2], "bias_right": bias[2:], "weight": upper[:2, 2:]}
        prior = RBM(2, 2)
    else:
        values = {"bias": bias, "weight": upper}
        prior = BoltzmannMachine(case.units)
    prior = prior.double()
    with torch.no_grad():
        for name, value in values.items():
            prior.get_parameter(name).copy_(value)
    return prior


def _posterior(
    case: Case, offsets: Tensor, slope: Tensor, rho: Tensor, cut: bool = False
) -> tuple[list[Tensor], list[Tensor]]:
    """Logits and samples, group after group; `cut` keeps the gradient from passing ζ."""
    logits: list[Tensor] = []
    zeta: list[Tensor] = []
    for group, noise in enumerate(rho.split(list(case.sizes), -1)):
        earlier = torch.cat([rho[:, :0], *zeta], -1)
        logits.append(_logits(torch, case.sizes, group, earlier, offsets, slope).expand_as(noise))
        sample = SpikeExponential(BETA).sample(logits[-1], noise)
        zeta.append(sample.detach() if cut else sample)
    return logits, zeta


@cache
def _estimate(kl: KL, case: Case, batches: int = BATCHES, cut: bool = False) -> Estimate:
    """Means over batches of DRAWS samples each; their spread gives the standard error of the total mean."""
    generator = torch.Generator().manual_seed(7)
    prior, n = _prior(case), case.units
    upper = _matrix(n, case.couplings, np.array([PRIOR_WEIGHT[pair] for pair in case.couplings]))
    log_z = enumeration.log_partition(PRIOR_BIAS[:n], upper + upper.T)
    offsets = torch.tensor(OFFSETS[:n], requires_grad=True)
    slope = torch.tensor(SLOPE[:n, :n], requires_grad=True)
    rows = []
    for _ in range(batches):
        rho = uniform(DRAWS, n, generator=generator, dtype=torch.float64)
        value = kl(prior, *_posterior(case, offsets, slope, rho, cut), log_z)
        assert value.shape == (DRAWS,)
        grads = torch.autograd.grad(value.mean(), [offsets, slope, *prior.parameters()])
        weight = grads[-1] if case.kind == "machine" else torch.nn.functional.pad(grads[-1], (2, 0))
        edges = [grads[1][pair] for pair in case.slopes]
        weights = [weight[pair] for pair in case.couplings]
        rows.append(torch.cat([value.mean()[None], grads[0], torch.stack(edges), *grads[2:-1], torch.stack(weights)]))
    table = torch.stack(rows).detach().numpy()
    mean, error = table.mean(0), table.std(0, ddof=1) / batches**0.5
    # log_z went in as a number: add its gradient, E[z_i] and E[z_i z_j]
    first, second = enumeration.moments(PRIOR_BIAS[:n], upper + upper.T)
    mean[1 + n + len(case.slopes) :] += np.concatenate([first, [second[pair] for pair in case.couplings]])
    return Estimate(mean, error)


def _deviation(kl: KL, case: Case, part: str, batches: int = BATCHES, cut: bool = False) -> float:
    """Largest distance from the truth in standard errors; terms without noise may differ by the rounding of slopes."""
    start = 1 + case.units + len(case.slopes)
    rows = {"value": slice(0, 1), "posterior": slice(1, start), "prior": slice(start, None)}[part]
    mean, error = _estimate(kl, case, batches, cut)
    return float((np.abs(mean - _truth(case)) / np.maximum(error, 1e-8))[rows].max())


@cases
def test_the_quadrature_has_converged(case: Case) -> None:
    value = _true_kl(case, _parameters(case))
    assert value == pytest.approx(_true_kl(case, _parameters(case), nodes=20), abs=1e-9)
    assert value > 0.1


@cases
@pytest.mark.parametrize("part", ["value", "posterior", "prior"])
def test_rolfe_kl_equals_enumeration(case: Case, part: str) -> None:
    """200 000 draws: the value, then the gradients."""
    assert _deviation(rolfe_kl, case, part) < STANDARD_ERRORS
    assert _estimate(rolfe_kl, case).error.max() < 0.02, "the test must see a bias of 0.1"


# Variants: Rolfe's own form, unbiased too, and forms that are wrong.


def _parts(prior: BoltzmannPrior, logits: Sequence[Tensor], zeta: Sequence[Tensor]) -> tuple[Tensor, ...]:
    """All units side by side: logits, μ, z with the last group's mean, and which unit is in a later group."""
    group = torch.tensor([a for a, g in enumerate(logits) for _ in range(g.shape[-1])])
    mu = torch.sigmoid(torch.cat(list(logits), -1))
    z = (torch.cat(list(zeta), -1) > 0).double()
    z = torch.where(group == len(logits) - 1, mu, z).detach()
    return torch.cat(list(logits), -1), mu, z, (group[:, None] < group[None, :]).double()


def _printed(
    prior: BoltzmannPrior, logits: Sequence[Tensor], zeta: Sequence[Tensor], log_z: float, clip: float = 1.0
) -> Tensor:
    """Σ_i stop[l_i - a_i - Σ_j W_ij z_j s_ij] μ_i, s_ij = (1-z_i) / (1-μ_i) for j later than i, else 1."""
    all_logits, mu, z, later = _parts(prior, logits, zeta)
    bias, matrix = prior.couplings()
    s = later * ((1 - z) / (1 - mu.clamp_max(clip)))[..., None] + 1 - later
    field = (matrix * s * z[:, None, :]).sum(-1)
    surrogate = ((all_logits - bias - field).detach() * mu).sum(-1)
    value = log_z - bernoulli_entropy(all_logits).sum(-1).detach() + prior.energy(z)
    return value + surrogate - surrogate.detach()


def _with_step(slope: Callable[[Tensor, Tensor], Tensor]) -> KL:
    """The KL of Sec. 5 with ν = z and another slope ∂ν/∂l = slope(z, μ)."""

    def kl(prior: BoltzmannPrior, logits: Sequence[Tensor], zeta: Sequence[Tensor], log_z: float) -> Tensor:
        all_logits, mu, _, _ = _parts(prior, logits, zeta)
        z = (torch.cat(list(zeta), -1) > 0).double()
        nu = z + slope(z, mu).detach() * (all_logits - all_logits.detach())
        energy = prior.cross_entropy(mu, nu, [g.shape[-1] for g in logits])
        return log_z - bernoulli_entropy(all_logits).sum(-1) + energy

    return kl


_right_slope = _with_step(lambda z, mu: (1 - z) * mu)
_no_boundary = _with_step(lambda z, mu: torch.zeros_like(mu))
_straight_through = _with_step(lambda z, mu: mu * (1 - mu))
_wrong_end = _with_step(lambda z, mu: z * (1 - mu))


def _mean_field(prior: BoltzmannPrior, logits: Sequence[Tensor], zeta: Sequence[Tensor], log_z: float) -> Tensor:
    """μ on both ends of every coupling."""
    all_logits, mu, _, _ = _parts(prior, logits, zeta)
    return log_z - bernoulli_entropy(all_logits).sum(-1) + prior.energy(mu)


@cases
def test_the_slope_written_out_is_the_same_function(case: Case) -> None:
    rho = uniform(50, case.units, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    prior, grads = _prior(case), []
    for kl in (rolfe_kl, _right_slope):
        offsets = torch.tensor(OFFSETS[: case.units], requires_grad=True)
        value = kl(prior, *_posterior(case, offsets, torch.tensor(SLOPE), rho), 1.5)
        grads.append([value, *torch.autograd.grad(value.sum(), [offsets, *prior.parameters()])])
    for a, b in zip(*grads, strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=1e-11)


@cases
def test_rolfes_printed_form_has_the_same_mean(case: Case) -> None:
    """Two derivations of one gradient, both against the oracle."""
    for part in ("value", "posterior", "prior"):
        assert _deviation(_printed, case, part, BATCHES // 2) < STANDARD_ERRORS


@cases
@pytest.mark.parametrize("kl", [_no_boundary, _straight_through, _wrong_end])
def test_enumeration_sees_a_wrong_boundary_term(case: Case, kl: KL) -> None:
    assert _deviation(kl, case, "value", BATCHES // 4) < STANDARD_ERRORS
    assert _deviation(kl, case, "posterior", BATCHES // 4) > 2 * STANDARD_ERRORS


@cases
def test_enumeration_sees_a_gradient_cut_at_zeta(case: Case) -> None:
    assert _deviation(rolfe_kl, case, "value", BATCHES // 4, cut=True) < STANDARD_ERRORS
    assert _deviation(rolfe_kl, case, "posterior", BATCHES // 4, cut=True) > 2 * STANDARD_ERRORS


@cases
def test_enumeration_sees_the_mean_field(case: Case) -> None:
    for part in ("value", "posterior", "prior"):
        assert _deviation(_mean_field, case, part, BATCHES // 4) > 2 * STANDARD_ERRORS


def _slope_of_a_sure_unit(kl: KL, logit: float) -> float:
    """Mean ∂KL/∂logit of unit 0 with W = 1 to a unit of a later group whose μ is held at 1/2: exact, from both z."""
    prior = BoltzmannMachine(2).double()
    with torch.no_grad():
        prior.weight[0, 1] = 1
    first = torch.full((2, 1), logit, dtype=torch.float64, requires_grad=True)
    zeta = [torch.tensor([[0.0], [0.5]]).double(), torch.zeros(2, 1).double()]
    mu = torch.sigmoid(first.detach()[0, 0])
    value = kl(prior, [first, torch.zeros(2, 1).double()], zeta, 0.0)
    (grad,) = torch.autograd.grad(value @ torch.stack([1 - mu, mu]), first)
    return grad.sum().item()


@pytest.mark.parametrize("logit", [-9.0, 0.0, 5.0, 9.0])
def test_no_clipping_is_needed_for_units_that_are_nearly_sure(logit: float) -> None:
    mu = 1 / (1 + np.exp(-logit))
    exact = mu * (1 - mu) * (logit - 0.5)
    assert _slope_of_a_sure_unit(rolfe_kl, logit) == pytest.approx(exact, rel=1e-9)


def test_clipping_mu_at_0_999_would_be_biased() -> None:
    def clipped(prior: BoltzmannPrior, logits: Sequence[Tensor], zeta: Sequence[Tensor], log_z: float) -> Tensor:
        return _printed(prior, logits, zeta, log_z, clip=0.999)

    mu = 1 / (1 + np.exp(-9.0))
    coupling = mu * (1 - mu) * 9 - _slope_of_a_sure_unit(clipped, 9.0)
    assert coupling / (mu * (1 - mu) * 0.5) == pytest.approx((1 - mu) / 0.001, rel=1e-6)


@pytest.mark.parametrize("sizes", [(4,), (2, 2), (1, 2, 1)], ids=str)
def test_the_last_groups_zeta_does_not_enter(sizes: tuple[int, ...]) -> None:
    generator = torch.Generator().manual_seed(1)
    prior = _prior(Case("machine", (2, 2)))
    logits = torch.randn(20, 4, generator=generator, dtype=torch.float64).split(list(sizes), -1)
    zeta = uniform(20, 4, generator=generator, dtype=torch.float64).split(list(sizes), -1)
    kl = rolfe_kl(prior, logits, zeta, 0.0)
    assert torch.equal(kl, rolfe_kl(prior, logits, [*zeta[:-1], 0 * zeta[-1]], 0.0))
    if len(sizes) > 1:
        assert not torch.equal(kl, rolfe_kl(prior, logits, [0 * zeta[0], *zeta[1:]], 0.0))


def test_no_gradient_passes_zeta_itself() -> None:
    """z is a step: what reaches ζ comes from the logits of later groups alone."""
    zeta = uniform(5, 4, generator=torch.Generator().manual_seed(2)).requires_grad_()
    logits = torch.zeros(5, 4, requires_grad=True)
    kl = rolfe_kl(RBM(2, 2), logits.split(2, -1), zeta.split(2, -1), 0.0)
    assert torch.autograd.grad(kl.sum(), [logits, zeta], allow_unused=True)[1] is None


def test_log_z_surrogate_passes_its_gradient_through_the_kl() -> None:
    prior, chains = _prior(Case("rbm", (2, 2))), torch.tensor([[1, 0, 1, 1], [0, 1, 1, 0]])
    logits = [torch.zeros(5, 2, dtype=torch.float64)] * 2
    parameters = list(prior.parameters())

    def gradient(log_z: Tensor | float) -> tuple[Tensor, ...]:
        return torch.autograd.grad(rolfe_kl(prior, logits, logits, log_z).mean(), parameters)

    added = [a - b for a, b in zip(gradient(prior.log_z_surrogate(chains)), gradient(0.0), strict=True)]
    assert [a.tolist() for a in added] == [[0.5, 0.5], [1.0, 0.5], [[0.5, 0.5], [0.5, 0.0]]]


def test_kl_and_gradients_stay_finite_in_float32_at_extremes() -> None:
    """Certain units and ζ on either side of the step, also where the two disagree."""
    inf = torch.inf
    logits = torch.tensor([[100.0, -100.0, 100.0, -100.0], [inf, -inf, inf, 0.0]], requires_grad=True)
    prior = BoltzmannMachine(4)
    torch.nn.init.normal_(prior.weight, generator=torch.Generator().manual_seed(4))
    for zeta in (torch.zeros(2, 4), torch.ones(2, 4), torch.tensor([[1.0, 0.0, 1.0, 0.0]] * 2)):
        for sizes in ([4], [2, 2], [1, 1, 1, 1]):
            kl = rolfe_kl(prior, logits.split(sizes, -1), zeta.split(sizes, -1), 0.0)
            grads = torch.autograd.grad(kl.sum(), [logits, *prior.parameters()])
            assert kl.isfinite().all() and all(g.isfinite().all() for g in grads)


def test_groups_that_do_not_match_are_named() -> None:
    a, b = torch.zeros(2, 3), torch.zeros(2, 1)
    with pytest.raises(ValueError, match=r"one equal shape per group, got \[\(2, 3\)\] and \[\(2, 1\)\]"):
        rolfe_kl(RBM(2, 2), [a], [b], 0.0)
    for logits, zeta in (([a, b], [a]), ([], [])):
        with pytest.raises(ValueError, match="one equal shape per group"):
            rolfe_kl(RBM(2, 2), logits, zeta, 0.0)
