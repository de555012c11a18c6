"""The relaxed log prior against enumeration of 8 units, an RBM and a general machine; everything in float64."""

import math
from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor

from dvaepp.objectives import relaxed_kl, relaxed_log_prior
from dvaepp.priors import RBM, BoltzmannMachine, BoltzmannPrior
from dvaepp.smoothing import MEMBERS, Overlapping
from tests import relaxed_oracle as oracle
from tests.enumeration import Array, log_partition

UNITS = 8
SHARPNESS = {
    "exponential": [4.0, 8.0, 16.0, 40.0],
    "power_law": [4.0, 10.0, 30.0, 40.0],
    "uniform_exponential": [8.0, 20.0],
    "gaussian": [0.5, 0.3, 0.16],
    "logistic": [0.2, 0.1, 0.05],
}
CASES = [(name, value) for name, values in SHARPNESS.items() for value in values]
cases = pytest.mark.parametrize("name, sharpness", CASES)


def _rbm() -> RBM:
    prior = RBM(4, 4).double()
    _fill(prior, 1)
    return prior


def _machine() -> BoltzmannMachine:
    prior = BoltzmannMachine(UNITS).double()
    _fill(prior, 2)
    return prior


def _fill(prior: BoltzmannPrior, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in prior.parameters():
            parameter.copy_(0.8 * torch.randn(parameter.shape, generator=generator, dtype=torch.float64))


PRIORS = [pytest.param(_rbm, id="RBM"), pytest.param(_machine, id="general")]
priors = pytest.mark.parametrize("make", PRIORS)
Make = Callable[[], BoltzmannPrior]


def _numbers(prior: BoltzmannPrior) -> tuple[Array, Array]:
    bias, matrix = prior.couplings()
    return bias.detach().numpy(), matrix.detach().numpy()


def _zeta(name: str, sharpness: float, seed: int = 3, rows: int = 40) -> Tensor:
    """Draws of q(ζ|x) with logits of ordinary size, away from poles that a float64 cannot resolve."""
    generator = torch.Generator().manual_seed(seed)
    logits = 1.5 * torch.randn(rows, UNITS, generator=generator, dtype=torch.float64)
    rho = torch.rand(rows, UNITS, generator=generator, dtype=torch.float64)
    zeta = _smoothing(name, sharpness).sample_components(logits, rho)
    return zeta.clamp(1e-9, 1 - 1e-9) if name == "power_law" else zeta


def _smoothing(name: str, sharpness: float) -> Overlapping:
    member = MEMBERS[name](sharpness)
    assert isinstance(member, Overlapping)
    return member


@cases
@priors
def test_mean_field_is_below_enumeration_and_near_it(make: Make, name: str, sharpness: float) -> None:
    """Never above; the gap, printed, closes as the smoothing sharpens."""
    prior, zeta = make(), _zeta(name, sharpness)
    bias, matrix = _numbers(prior)
    exact = np.array([oracle.log_prior(bias, matrix, row, name, sharpness) for row in zeta.numpy()])
    bound = relaxed_log_prior(prior, zeta, _smoothing(name, sharpness), log_partition(bias, matrix))
    gap = exact - bound.detach().numpy()
    print(f"{type(prior).__name__} {name} {sharpness:g}: mean gap {gap.mean():.2e}, largest {gap.max():.2e} nats")
    assert gap.min() > -1e-9
    assert gap.mean() < 0.5


@priors
def test_the_gap_closes_in_the_limit_of_binary_units(make: Make) -> None:
    prior = make()
    bias, matrix = _numbers(prior)
    gaps = []
    for beta in (4.0, 16.0, 64.0):
        zeta = _zeta("exponential", beta)
        exact = np.mean([oracle.log_prior(bias, matrix, row, "exponential", beta) for row in zeta.numpy()])
        bound = relaxed_log_prior(prior, zeta, _smoothing("exponential", beta), log_partition(bias, matrix))
        gaps.append(exact - bound.mean().item())
    assert gaps[0] > gaps[1] > gaps[2] and gaps[2] < 0.05


@cases
@priors
def test_gradient_is_that_of_the_converged_bound(make: Make, name: str, sharpness: float) -> None:
    """Central differences of the converged bound in numpy, to 1e-6; the error of five sweeps is printed."""
    prior, zeta = make(), _zeta(name, sharpness, rows=1)
    # differences need ζ away from the ends, where b is steep
    zeta = (0.05 + 0.9 * zeta.clamp(0, 1)).requires_grad_()
    bias, matrix = _numbers(prior)

    def truth(bias: Array, matrix: Array, zeta: Array) -> float:
        floor = oracle.log_density0(name, sharpness, zeta).sum()
        return oracle.mean_field(bias, matrix, oracle.log_ratio(name, sharpness, zeta)) + float(floor)

    expected = _differences(truth, bias, matrix, zeta.detach().numpy()[0])
    errors = {}
    for sweeps in (5, 500):
        bound = relaxed_log_prior(prior, zeta, _smoothing(name, sharpness), 0.0, num_sweeps=sweeps)
        found = torch.autograd.grad(bound.sum(), [zeta, *prior.parameters()])
        errors[sweeps] = np.abs(_flat(prior, found) - expected).max() / max(1.0, np.abs(expected).max())
    print(f"{type(prior).__name__} {name} {sharpness:g}: relative error of five sweeps {errors[5]:.1e}")
    assert errors[500] < 1e-6
    assert errors[5] < 0.1


def _differences(truth: Callable[[Array, Array, Array], float], bias: Array, matrix: Array, zeta: Array) -> Array:
    """Derivatives in ζ, the biases and every coupling i < j, in this order."""
    step, rows = 1e-5, []
    for i in range(UNITS):
        shift = step * np.eye(UNITS)[i]
        rows.append(truth(bias, matrix, zeta + shift) - truth(bias, matrix, zeta - shift))
    for i in range(UNITS):
        shift = step * np.eye(UNITS)[i]
        rows.append(truth(bias + shift, matrix, zeta) - truth(bias - shift, matrix, zeta))
    for i, j in zip(*np.triu_indices(UNITS, 1), strict=True):
        shift = np.zeros((UNITS, UNITS))
        shift[i, j] = shift[j, i] = step
        rows.append(truth(bias, matrix + shift, zeta) - truth(bias, matrix - shift, zeta))
    found = np.array(rows) / (2 * step)
    if not matrix[:4, :4].any():  # an RBM has the couplings across its sides only
        across = [(i < 4) != (j < 4) for i, j in zip(*np.triu_indices(UNITS, 1), strict=True)]
        found = np.concatenate([found[: 2 * UNITS], found[2 * UNITS :][across]])
    return found


def _flat(prior: BoltzmannPrior, found: tuple[Tensor, ...]) -> Array:
    """Gradients of ζ and the parameters in the order of `_differences`."""
    zeta, *parameters = (f.numpy() for f in found)
    if isinstance(prior, RBM):
        return np.concatenate([zeta[0], parameters[0], parameters[1], parameters[2].ravel()])
    return np.concatenate([zeta[0], parameters[0], parameters[1][np.triu_indices(UNITS, 1)]])


@cases
@priors
def test_kl_is_log_q_minus_log_p(make: Make, name: str, sharpness: float) -> None:
    """Terms that cancel are left out of `relaxed_kl`; nothing else is."""
    prior, smoothing = make(), _smoothing(name, sharpness)
    generator = torch.Generator().manual_seed(4)
    logits = [1.5 * torch.randn(9, 4, generator=generator, dtype=torch.float64) for _ in range(2)]
    zeta = list(_zeta(name, sharpness, rows=9).split(4, 1))
    log_q = sum(smoothing.log_prob(s, q).sum(1) for s, q in zip(zeta, logits, strict=True))
    expected = log_q - relaxed_log_prior(prior, torch.cat(zeta, 1), smoothing, 1.7)
    torch.testing.assert_close(relaxed_kl(prior, logits, zeta, smoothing, 1.7), expected, rtol=1e-9, atol=1e-9)


def test_float32_kl_keeps_its_digits_at_the_poles() -> None:
    """200 units of a power law with β = 40, most ζ exactly 0 or 1 in float32: 1e-4 of a float64 computation on them."""
    generator = torch.Generator().manual_seed(6)
    prior, smoothing = RBM(100, 100), _smoothing("power_law", 40.0)
    _fill(prior, 5)
    logits = 3 * torch.randn(50, 200, generator=generator)
    zeta = smoothing.sample_components(logits, torch.rand(50, 200, generator=generator))
    assert ((zeta == 0) | (zeta == 1)).float().mean() > 0.3
    single = relaxed_kl(prior, [logits], [zeta], smoothing, 0.0)
    b = smoothing.log_ratio(zeta)

    class Same(MEMBERS["power_law"]):
        def log_ratio(self, zeta: Tensor) -> Tensor:
            return b.double()

    double = relaxed_kl(prior.double(), [logits.double()], [zeta.double()], Same(40.0), 0.0)
    assert single.isfinite().all()
    torch.testing.assert_close(single.double(), double, rtol=1e-4, atol=1e-3)


def test_score_is_left_out_or_kept() -> None:
    """`path_only` changes no number, only whether the logits get a gradient beside that of ζ."""
    prior, smoothing = _rbm(), _smoothing("exponential", 8.0)
    logits = torch.zeros(3, UNITS, dtype=torch.float64, requires_grad=True)
    zeta = _zeta("exponential", 8.0, rows=3)
    with_score = relaxed_kl(prior, [logits], [zeta], smoothing, 0.0, path_only=False)
    assert torch.equal(with_score, relaxed_kl(prior, [logits], [zeta], smoothing, 0.0))
    assert torch.autograd.grad(with_score.sum(), logits)[0].abs().max() > 0.01
    (none,) = torch.autograd.grad(relaxed_kl(prior, [logits], [zeta], smoothing, 0.0).sum(), logits, allow_unused=True)
    assert none is None


def test_groups_may_have_smoothings_of_their_own() -> None:
    prior, two = _rbm(), [_smoothing("exponential", 8.0), _smoothing("power_law", 4.0)]
    zeta = torch.full((2, 4), 0.3, dtype=torch.float64)
    both = relaxed_log_prior(prior, [zeta, zeta], two, 0.0)
    same = relaxed_log_prior(prior, [zeta, zeta], two[0], 0.0)
    torch.testing.assert_close(same, relaxed_log_prior(prior, torch.cat([zeta, zeta], 1), two[0], 0.0))
    assert (both - same).abs().max() > 0.01 and math.isfinite(both.sum().item())
