"""The KL of Sec. 5 against enumeration over z and quadrature over ζ, its gradients, and variants that must fail.

Which variants can fail? Given ζ_<a the ζ of one group are independent and E[ν] = μ, so that ν in place of μ keeps the
mean wherever the other factor does not react to that ζ: inside a group, at the later end of a coupling, in a linear
term. It only adds noise, and is seen by exact tests: some terms must not feel some ζ at all. μ in place of ν at the
earlier end of a coupling between groups, where the later end reacts to ζ, changes the mean.
"""

from collections.abc import Callable, Sequence
from functools import cache
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from torch import Tensor

from dvaepp.errors import UsageError
from dvaepp.numerics import bernoulli_entropy, uniform
from dvaepp.objectives.boltzmann import boltzmann_kl
from dvaepp.priors import RBM, BoltzmannMachine, BoltzmannPrior
from dvaepp.smoothing import Exponential
from tests import enumeration
from tests.enumeration import Array

BETA = 4.0
BATCHES, DRAWS = 100, 2000
STANDARD_ERRORS = 5  # failure rate about 3e-6 per component; seeds are fixed, so a test never flickers

RNG = np.random.default_rng(11)
OFFSETS = RNG.normal(size=4)  # the posterior's parameters: one bias per unit
PRIOR_BIAS = RNG.normal(size=4)
PRIOR_WEIGHT = RNG.normal(scale=1.5, size=(4, 4))
# The posterior correlates units with the sign of their coupling, so that the biases of wrong pairs do not cancel.
SLOPE, BEND = np.sign(PRIOR_WEIGHT) * RNG.uniform(1, 3, size=(2, 4, 4))
PAIRS = {"rbm": [(0, 2), (0, 3), (1, 2), (1, 3)], "machine": [(0, 1), (0, 2), (0, 3), (1, 2), (1, 3), (2, 3)]}

KL = Callable[[BoltzmannPrior, Sequence[Tensor], Sequence[Tensor], Exponential, float], Tensor]


class Case(NamedTuple):
    kind: str
    sizes: tuple[int, ...]


CASES = [Case(kind, sizes) for kind in PAIRS for sizes in ((2, 2), (1, 1, 1, 1))]
cases = pytest.mark.parametrize("case", CASES, ids=str)


def _logits(xp: ModuleType, sizes: Sequence[int], group: int, earlier: Any, offsets: Any) -> Any:
    """Logits of q(z_a | x, ζ_<a), a smooth function of earlier ζ, for numpy and for torch."""
    start = sum(sizes[:group])
    units = slice(start, start + sizes[group])
    slope, bend = xp.asarray(SLOPE[:start, units]), xp.asarray(BEND[:start, units])
    return offsets[units] + earlier @ slope + xp.tanh(earlier @ bend)


# The truth: numpy only.


def _coupling(kind: str, weights: Array) -> Array:
    coupling = np.zeros((4, 4))
    for (i, j), weight in zip(PAIRS[kind], weights, strict=True):
        coupling[i, j] = coupling[j, i] = weight
    return coupling


def _parameters(case: Case) -> Array:
    """Offsets of the posterior, biases and weights of the prior."""
    return np.concatenate([OFFSETS, PRIOR_BIAS, [PRIOR_WEIGHT[pair] for pair in PAIRS[case.kind]]])


def _true_kl(case: Case, parameters: Array, nodes: int = 16) -> float:
    offsets, bias, weights = parameters[:4], parameters[4:8], parameters[8:]

    def logits(group: int, earlier: Array) -> Array:
        return _logits(np, case.sizes, group, earlier, offsets)

    return enumeration.grouped_kl(bias, _coupling(case.kind, weights), case.sizes, logits, BETA, nodes)


@cache
def _truth(case: Case) -> Array:
    """The KL and its gradient by central differences."""
    parameters, step = _parameters(case), 1e-4
    shifts = step * np.eye(len(parameters))
    slopes = [(_true_kl(case, parameters + s) - _true_kl(case, parameters - s)) / (2 * step) for s in shifts]
    return np.array([_true_kl(case, parameters), *slopes])


# The estimate: the code under test, averaged.


class Estimate(NamedTuple):
    """Mean and standard error of the KL and of its gradient, in the order of `_truth`."""

    mean: Array
    error: Array


def _prior(kind: str) -> BoltzmannPrior:
    coupling = torch.tensor(_coupling(kind, np.array([PRIOR_WEIGHT[pair] for pair in PAIRS[kind]])))
    bias = torch.tensor(PRIOR_BIAS)
    prior: BoltzmannPrior
    if kind == "rbm":
        values = {"bias_left": bias[:2], "bias_right": bias[2:], "weight": coupling[:2, 2:]}
        prior = RBM(2, 2)
    else:
        values = {"bias": bias, "weight": coupling}
        prior = BoltzmannMachine(4)
    prior = prior.double()
    with torch.no_grad():
        for name, value in values.items():
            prior.get_parameter(name).copy_(value)
    return prior


def _posterior(sizes: Sequence[int], offsets: Tensor, rho: Tensor) -> tuple[list[Tensor], list[Tensor]]:
    """Logits and samples, group after group."""
    logits: list[Tensor] = []
    zeta: list[Tensor] = []
    for group, noise in enumerate(rho.split(list(sizes), -1)):
        earlier = torch.cat([rho[:, :0], *zeta], -1)
        logits.append(_logits(torch, sizes, group, earlier, offsets).expand_as(noise))
        zeta.append(Exponential(BETA).sample(logits[-1], noise))
    return logits, zeta


def _flat_gradient(value: Tensor, offsets: Tensor, prior: BoltzmannPrior) -> Array:
    """With respect to offsets, then biases, then weights of pairs (the upper triangle of a machine)."""
    grads = torch.autograd.grad(value, [offsets, *prior.parameters()])
    weight = grads[-1].flatten() if isinstance(prior, RBM) else grads[-1][tuple(zip(*PAIRS["machine"], strict=True))]
    return torch.cat([*grads[:-1], weight]).numpy()


@cache
def _estimate(kl: KL, case: Case, batches: int = BATCHES) -> Estimate:
    """Means over batches of DRAWS samples each; their spread gives the standard error of the total mean."""
    generator = torch.Generator().manual_seed(7)
    prior, weights = _prior(case.kind), np.array([PRIOR_WEIGHT[pair] for pair in PAIRS[case.kind]])
    coupling = _coupling(case.kind, weights)
    log_z = enumeration.log_partition(PRIOR_BIAS, coupling)
    rows = []
    for _ in range(batches):
        offsets = torch.tensor(OFFSETS, requires_grad=True)
        rho = uniform(DRAWS, 4, generator=generator, dtype=torch.float64)
        value = kl(prior, *_posterior(case.sizes, offsets, rho), Exponential(BETA), log_z)
        assert value.shape == (DRAWS,)
        rows.append([value.mean().item(), *_flat_gradient(value.mean(), offsets, prior)])
    table = np.array(rows)
    mean, error = table.mean(0), table.std(0, ddof=1) / batches**0.5
    # log_z went in as a number: add its gradient, E[z_i] and E[z_i z_j]
    first, second = enumeration.moments(PRIOR_BIAS, coupling)
    mean[5:] += np.concatenate([first, [second[pair] for pair in PAIRS[case.kind]]])
    return Estimate(mean, error)


VALUE, TO_POSTERIOR, TO_PRIOR = slice(0, 1), slice(1, 5), slice(5, None)


def _deviation(kl: KL, case: Case, part: slice, batches: int = BATCHES) -> float:
    """Largest distance from the truth in standard errors; terms without noise may differ by the rounding of slopes."""
    mean, error = _estimate(kl, case, batches)
    return float((np.abs(mean - _truth(case)) / np.maximum(error, 1e-8))[part].max())


@cases
def test_the_quadrature_has_converged(case: Case) -> None:
    parameters = _parameters(case)
    assert _true_kl(case, parameters) == pytest.approx(_true_kl(case, parameters, nodes=22), abs=1e-9)
    assert _true_kl(case, parameters) > 0.1


@cases
def test_sec5_kl_equals_enumeration(case: Case) -> None:
    assert _deviation(boltzmann_kl, case, VALUE) < STANDARD_ERRORS
    assert _estimate(boltzmann_kl, case).error[0] < 0.005, "the test must see a bias of 0.05 nat"


@cases
def test_sec5_gradient_to_the_posterior_equals_enumeration(case: Case) -> None:
    assert _deviation(boltzmann_kl, case, TO_POSTERIOR) < STANDARD_ERRORS


@cases
def test_sec5_gradient_to_the_prior_equals_enumeration(case: Case) -> None:
    assert _deviation(boltzmann_kl, case, TO_PRIOR) < STANDARD_ERRORS


# Variants written pair by pair, one right and the others not.

Pair = Callable[[Tensor, Tensor, int, int, bool], Tensor]


def _right(mu: Tensor, nu: Tensor, i: int, j: int, same: bool) -> Tensor:
    return (mu if same else nu)[:, i] * mu[:, j]


def _mu_across(mu: Tensor, nu: Tensor, i: int, j: int, same: bool) -> Tensor:
    return mu[:, i] * mu[:, j]


def _ends_swapped(mu: Tensor, nu: Tensor, i: int, j: int, same: bool) -> Tensor:
    return mu[:, i] * (mu if same else nu)[:, j]


def _nu_inside(mu: Tensor, nu: Tensor, i: int, j: int, same: bool) -> Tensor:
    return nu[:, i] * (nu if same else mu)[:, j]


def _nu_everywhere(mu: Tensor, nu: Tensor, i: int, j: int, same: bool) -> Tensor:
    return nu[:, i] * nu[:, j]


@cache
def _variant(pair: Pair) -> KL:
    def kl(
        prior: BoltzmannPrior, logits: Sequence[Tensor], zeta: Sequence[Tensor], smoothing: Exponential, log_z: float
    ) -> Tensor:
        mu = torch.cat([1 / (1 + torch.exp(-g)) for g in logits], -1)
        odds = torch.cat([g + smoothing.log_ratio(s) for g, s in zip(logits, zeta, strict=True)], -1)
        nu = 1 / (1 + torch.exp(-odds))
        group = [a for a, g in enumerate(logits) for _ in range(g.shape[-1])]
        bias, matrix = prior.couplings()
        total = log_z + (mu * torch.log(mu) + (1 - mu) * torch.log(1 - mu)).sum(-1) - mu @ bias
        for i, j in PAIRS["machine"]:
            total = total - matrix[i, j] * pair(mu, nu, i, j, group[i] == group[j])
        return total

    return kl


def _detached(
    prior: BoltzmannPrior, logits: Sequence[Tensor], zeta: Sequence[Tensor], smoothing: Exponential, log_z: float
) -> Tensor:
    """The right value with a gradient that forgets how ν follows ζ."""
    return boltzmann_kl(prior, logits, [s.detach() for s in zeta], smoothing, log_z)


@cases
def test_the_rule_pair_by_pair_is_the_same_function(case: Case) -> None:
    rho = uniform(50, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    logits, zeta = _posterior(case.sizes, torch.tensor(OFFSETS), rho)
    arguments = (_prior(case.kind), logits, zeta, Exponential(BETA), 1.5)
    torch.testing.assert_close(boltzmann_kl(*arguments), _variant(_right)(*arguments), rtol=0, atol=1e-12)


@cases
@pytest.mark.parametrize("pair", [_mu_across, _ends_swapped])
def test_enumeration_sees_mu_where_nu_belongs_across_groups(case: Case, pair: Pair) -> None:
    for part in (VALUE, TO_POSTERIOR, TO_PRIOR):
        assert _deviation(_variant(pair), case, part, BATCHES // 4) > 2 * STANDARD_ERRORS


@cases
def test_enumeration_sees_a_gradient_cut_at_zeta(case: Case) -> None:
    assert _deviation(_detached, case, VALUE, BATCHES // 4) < STANDARD_ERRORS
    assert _deviation(_detached, case, TO_POSTERIOR, BATCHES // 4) > 2 * STANDARD_ERRORS


@pytest.mark.parametrize("pair", [_nu_inside, _nu_everywhere])
def test_nu_where_mu_belongs_keeps_the_mean_so_only_exact_tests_see_it(pair: Pair) -> None:
    case = Case("machine", (2, 2))
    assert _deviation(_variant(pair), case, slice(None)) < STANDARD_ERRORS
    assert _moves_with(_variant(pair), case.sizes, PAIRS["machine"], zeta_of=1) > 1e-2


def _moves_with(kl: KL, sizes: Sequence[int], pairs: list[tuple[int, int]], zeta_of: int) -> float:
    """How far the KL moves when ζ of one group changes and all logits stay, with couplings `pairs` only."""
    generator = torch.Generator().manual_seed(1)
    prior = BoltzmannMachine(4).double()
    with torch.no_grad():
        for i, j in pairs:
            prior.weight[i, j] = PRIOR_WEIGHT[i, j]
        prior.bias.copy_(torch.tensor(PRIOR_BIAS))
    logits = list(torch.randn(20, 4, generator=generator, dtype=torch.float64).split(list(sizes), -1))
    zeta, other = (list(uniform(20, 4, generator=generator, dtype=torch.float64).split(list(sizes), -1)) for _ in "ab")
    moved = [other[a] if a == zeta_of else s for a, s in enumerate(zeta)]
    first, second = (kl(prior, logits, z, Exponential(BETA), 0.0) for z in (zeta, moved))
    return (first - second).abs().max().item()


@pytest.mark.parametrize("sizes", [(4,), (2, 2), (1, 3), (3, 1), (1, 2, 1), (1, 1, 1, 1)])
def test_the_last_groups_zeta_does_not_enter(sizes: tuple[int, ...]) -> None:
    last = len(sizes) - 1
    assert _moves_with(boltzmann_kl, sizes, PAIRS["machine"], zeta_of=last) == 0
    assert _moves_with(_variant(_nu_everywhere), sizes, PAIRS["machine"], zeta_of=last) > 1e-2
    if last > 0:
        assert _moves_with(boltzmann_kl, sizes, PAIRS["machine"], zeta_of=0) > 1e-2


@pytest.mark.parametrize(
    ("sizes", "pairs", "group"),
    [((2, 2), [(0, 1), (2, 3)], 0), ((3, 1), [(0, 1), (0, 2)], 0), ((1, 2, 1), [(1, 2)], 1)],
)
def test_a_coupling_inside_a_group_does_not_feel_zeta(
    sizes: tuple[int, ...], pairs: list[tuple[int, int]], group: int
) -> None:
    assert _moves_with(boltzmann_kl, sizes, pairs, zeta_of=group) == 0
    assert _moves_with(_variant(_nu_inside), sizes, pairs, zeta_of=group) > 1e-2


@pytest.mark.parametrize("kind", PAIRS)
def test_one_group_gives_the_mean_field_kl_exactly(kind: str) -> None:
    """KL of a factorial q against p over all 16 states; no sample is needed, so none may matter."""
    logits = torch.tensor(np.random.default_rng(1).normal(scale=2, size=(3, 4)))
    zeta = uniform(3, 4, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    coupling = _coupling(kind, np.array([PRIOR_WEIGHT[pair] for pair in PAIRS[kind]]))
    log_z = enumeration.log_partition(PRIOR_BIAS, coupling)
    actual = boltzmann_kl(_prior(kind), [logits], [zeta], Exponential(BETA), log_z)

    log_p = -enumeration.energies(PRIOR_BIAS, coupling) - log_z
    signs = 2 * enumeration.states(4) - 1
    log_q = -np.log1p(np.exp(-signs[None] * logits.numpy()[:, None])).sum(-1)
    expected = (np.exp(log_q) * (log_q - log_p)).sum(-1)
    np.testing.assert_allclose(actual.detach(), expected, rtol=0, atol=1e-12)
    assert torch.equal(actual, boltzmann_kl(_prior(kind), [logits], [1 - zeta], Exponential(BETA), log_z))
    if kind == "machine":
        wrong = _variant(_nu_inside)(_prior(kind), [logits], [zeta], Exponential(BETA), log_z)
        assert np.abs(wrong.detach().numpy() - expected).max() > 1e-2


@pytest.mark.parametrize("sizes", [[4], [2, 2], [1, 3], [3, 1], [1, 1, 1, 1], [1, 2, 1]], ids=str)
@pytest.mark.parametrize("sides", [(2, 2), (1, 3), (3, 1)], ids=str)
def test_rbm_cross_entropy_is_the_general_rule(sides: tuple[int, int], sizes: list[int]) -> None:
    """Values and gradients; with μ and ν exchanged the numbers differ."""
    generator = torch.Generator().manual_seed(3)
    rbm = RBM(*sides).double()
    with torch.no_grad():
        for parameter in rbm.parameters():
            parameter.normal_(generator=generator)
    mu, nu = (uniform(6, 4, generator=generator, dtype=torch.float64).requires_grad_() for _ in range(2))
    special, general = rbm.cross_entropy(mu, nu, sizes), BoltzmannPrior.cross_entropy(rbm, mu, nu, sizes)
    assert special.shape == (6,)
    torch.testing.assert_close(special, general, rtol=0, atol=1e-13)
    inputs = [mu, nu, *rbm.parameters()]
    for a, b in zip(*(torch.autograd.grad(v.sum(), inputs) for v in (special, general)), strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=1e-13)
    assert (special - BoltzmannPrior.cross_entropy(rbm, nu, mu, sizes)).abs().max() > 1e-2


@pytest.mark.parametrize("prior", [RBM(2, 2), BoltzmannMachine(4)])
@pytest.mark.parametrize("sizes", [[2, 3], [3], [], [4, 0], [5, -1]], ids=str)
def test_group_sizes_that_do_not_fit_are_refused(prior: BoltzmannPrior, sizes: list[int]) -> None:
    mu = torch.full((2, 4), 0.5)
    with pytest.raises(UsageError) as error:
        prior.cross_entropy(mu, mu, sizes)
    assert str(error.value) == f"group_sizes must be positive and sum to 4 units, got {sizes}"


def test_logits_of_another_number_of_units_are_refused() -> None:
    groups = [torch.zeros(3, 2), torch.zeros(3, 3)]
    with pytest.raises(UsageError, match=r"sum to 4 units, got \[2, 3\]"):
        boltzmann_kl(RBM(2, 2), groups, [g + 0.5 for g in groups], Exponential(BETA), 0.0)


def test_log_z_surrogate_passes_its_gradient_through_the_kl() -> None:
    prior, chains = _prior("rbm"), torch.tensor([[1, 0, 1, 1], [0, 1, 1, 0]])
    logits, zeta = [torch.zeros(5, 4, dtype=torch.float64)], [torch.full((5, 4), 0.5, dtype=torch.float64)]
    parameters = list(prior.parameters())

    def gradient(log_z: Tensor | float) -> list[Tensor]:
        return list(torch.autograd.grad(boltzmann_kl(prior, logits, zeta, Exponential(BETA), log_z).mean(), parameters))

    added = [a - b for a, b in zip(gradient(prior.log_z_surrogate(chains)), gradient(0.0), strict=True)]
    assert [a.tolist() for a in added] == [[0.5, 0.5], [1.0, 0.5], [[0.5, 0.5], [0.5, 0.0]]]


@pytest.mark.parametrize("beta", [1.0, 8.0, 100.0])
def test_kl_and_gradients_stay_finite_in_float32_at_extremes(beta: float) -> None:
    """Logits of ±100 and ζ at the ends of the support, also where the two disagree."""
    logits = torch.tensor([[100.0, -100.0, 100.0, -100.0], [-100.0, 100.0, 30.0, 0.0]], requires_grad=True)
    zeta = torch.tensor([[0.0, 1.0, 1.0, 0.0], [0.0, 1.0, 0.5, 0.5]], requires_grad=True)
    prior = BoltzmannMachine(4)
    torch.nn.init.normal_(prior.weight, generator=torch.Generator().manual_seed(4))
    for sizes in ([4], [2, 2], [1, 1, 1, 1]):
        kl = boltzmann_kl(prior, logits.split(sizes, -1), zeta.split(sizes, -1), Exponential(beta), 0.0)
        grads = torch.autograd.grad(kl.sum(), [logits, zeta, *prior.parameters()], allow_unused=True)
        assert kl.isfinite().all() and all(g.isfinite().all() for g in grads if g is not None)


# Entropy of a Bernoulli variable


def test_bernoulli_entropy_equals_its_formula_and_slope() -> None:
    logits = torch.linspace(-12, 12, 97, dtype=torch.float64, requires_grad=True)
    entropy = bernoulli_entropy(logits)
    (slope,) = torch.autograd.grad(entropy.sum(), logits)
    mu = 1 / (1 + np.exp(-logits.detach().numpy()))
    expected = -mu * np.log(mu) - (1 - mu) * np.log(1 - mu)
    np.testing.assert_allclose(entropy.detach(), expected, rtol=1e-9, atol=0)
    np.testing.assert_allclose(slope, -logits.detach().numpy() * mu * (1 - mu), rtol=1e-9, atol=1e-15)
    assert entropy.max().item() == pytest.approx(np.log(2))


def test_bernoulli_entropy_is_finite_and_small_in_float32_at_100() -> None:
    logits = torch.tensor([-100.0, -30.0, 30.0, 100.0], requires_grad=True)
    entropy = bernoulli_entropy(logits)
    (slope,) = torch.autograd.grad(entropy.sum(), logits)
    size = np.exp(-np.abs(logits.detach().double().numpy()))  # 1 - μ or μ, to 1e-13
    np.testing.assert_allclose(entropy.detach(), size * np.array([101.0, 31.0, 31.0, 101.0]), rtol=1e-5, atol=1e-41)
    np.testing.assert_allclose(slope, size * np.array([100.0, 30.0, -30.0, -100.0]), rtol=1e-5, atol=1e-41)
    mu = torch.sigmoid(logits)
    assert not (-mu * mu.log() - (1 - mu) * (1 - mu).log()).isfinite().all(), "as printed it fails here"


def test_certain_units_have_no_entropy_and_a_finite_kl() -> None:
    logits = torch.tensor([[torch.inf, -torch.inf, 0.0]], requires_grad=True)
    entropy = bernoulli_entropy(logits)
    assert entropy.tolist()[0][:2] == [0, 0]
    (grad,) = torch.autograd.grad(entropy.sum(), logits)
    assert torch.isfinite(grad).all()
    assert torch.isfinite(boltzmann_kl(RBM(1, 2), [logits], [torch.ones(1, 3)], Exponential(8.0), 0.0)).all()


def test_groups_that_do_not_match_are_named() -> None:
    a, b = torch.zeros(2, 3), torch.zeros(2, 1)
    for logits, zeta in (([a], [b]), ([a, b], [a]), ([], [])):
        with pytest.raises(ValueError, match="logits and zeta must have one equal shape per group"):
            boltzmann_kl(RBM(2, 2), logits, zeta, Exponential(8.0), 0.0)


def test_a_learned_beta_gets_the_whole_gradient() -> None:
    """β enters through ζ, through ν and through later logits; 1e-4 relative against central differences in float64."""
    prior = RBM(2, 2).double()
    with torch.no_grad():
        prior.bias_left.copy_(torch.from_numpy(PRIOR_BIAS[:2]))
        prior.bias_right.copy_(torch.from_numpy(PRIOR_BIAS[2:]))
        prior.weight.copy_(torch.from_numpy(PRIOR_WEIGHT[:2, 2:]))
    rho = uniform(500, 4, generator=torch.Generator().manual_seed(5), dtype=torch.float64)
    offsets = torch.from_numpy(OFFSETS)

    def bound(beta: Tensor | float) -> Tensor:
        smoothing = Exponential(beta)
        first = _logits(torch, (2, 2), 0, rho.new_zeros(500, 0), offsets).expand(500, 2)
        zeta_1 = smoothing.sample(first, rho[:, :2])
        second = _logits(torch, (2, 2), 1, zeta_1, offsets)
        zeta_2 = smoothing.sample(second, rho[:, 2:])
        return boltzmann_kl(prior, [first, second], [zeta_1, zeta_2], smoothing, 0.0).mean() + (zeta_1 * zeta_2).mean()

    beta = torch.tensor(BETA, dtype=torch.float64, requires_grad=True)
    (slope,) = torch.autograd.grad(bound(beta), beta)
    expected = (bound(BETA + 1e-4) - bound(BETA - 1e-4)).item() / 2e-4
    assert slope.item() == pytest.approx(expected, rel=1e-4)
