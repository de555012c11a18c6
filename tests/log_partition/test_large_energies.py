"""Couplings of 10 to 50: energies of up to half a million nats, far beyond what float32 resolves to a hundredth."""

import numpy as np
import pytest
import torch
from scipy.special import gammaln, logsumexp

from dvaepp.log_partition import ais, exact, tempering
from dvaepp.priors import RBM, BoltzmannMachine
from dvaepp.samplers.blocks import BlockGibbs
from dvaepp.samplers.noise import Noise
from tests.samplers.states import log_weights

SCALES = [10.1, 30.3, 49.9]  # none of them is a float32


def equal_couplings(left: int, right: int, weight: float, bias: float) -> RBM:
    """All couplings alike: rounding errors then add up instead of cancelling, and log Z is a sum over two counts."""
    prior = RBM(left, right).double()
    with torch.no_grad():
        prior.weight.fill_(weight)
        prior.bias_left.fill_(bias)
        prior.bias_right.fill_(bias)
    return prior


def log_z_of_equal_couplings(left: int, right: int, weight: float, bias: float) -> float:
    """log Σ_k Σ_l C(left, k) C(right, l) e^(bias (k + l) + weight k l)."""
    k, m = np.arange(left + 1)[:, None], np.arange(right + 1)[None]
    ways = (gammaln(n + 1) - gammaln(c + 1) - gammaln(n - c + 1) for n, c in ((left, k), (right, m)))
    return float(logsumexp(sum(ways) + bias * (k + m) + weight * k * m))


@pytest.mark.parametrize("weight, bias", [*((weight, 0.0) for weight in SCALES), (SCALES[-1], -0.45)])
def test_tempering_of_equal_couplings_is_within_its_error_bar(weight: float, bias: float) -> None:
    """100 x 100 units. Energies in float32 were off by 5 to 32 standard errors here."""
    shape = (100, 100, weight, 100 * weight * bias)
    found = tempering(equal_couplings(*shape), torch.Generator().manual_seed(1), num_sweeps=150)
    assert abs(found.value - log_z_of_equal_couplings(*shape)) < 4 * found.standard_error < 0.2


@pytest.mark.parametrize("weight", SCALES)
def test_all_methods_on_random_couplings_equal_enumeration(weight: float) -> None:
    """10 x 10 random couplings of that scale: exact to rounding, the others within 4 standard errors."""
    g = torch.Generator().manual_seed(0)
    prior = RBM(10, 10).double()
    with torch.no_grad():
        for parameter in prior.parameters():
            parameter.copy_(weight * torch.randn(parameter.shape, generator=g, dtype=torch.float64))
    bias, matrix = (p.detach().numpy() for p in prior.couplings())
    truth = float(logsumexp(_left_sums(bias, matrix, 10)))
    assert exact(prior).value == pytest.approx(truth, rel=1e-13)
    for found in (ais(prior, torch.Generator().manual_seed(0)), tempering(prior, torch.Generator().manual_seed(0))):
        assert abs(found.value - truth) < 4 * found.standard_error, found


def _left_sums(bias: np.ndarray, matrix: np.ndarray, left: int) -> np.ndarray:
    """log Σ over the right side of e^(-E), for every state of the left side."""
    states = (np.arange(2**left)[:, None] >> np.arange(left) & 1).astype(float)
    fields = bias[left:] + states @ matrix[:left, left:]
    return np.asarray(states @ bias[:left] + np.logaddexp(0, fields).sum(1))


@pytest.mark.parametrize("sparse", [False, True])
def test_annealing_of_a_general_machine_with_large_couplings(sparse: bool) -> None:
    g = torch.Generator().manual_seed(0)
    upper = torch.triu(torch.rand(11, 11, generator=g, dtype=torch.float64) < (0.3 if sparse else 1.0), 1)
    machine = BoltzmannMachine(11, upper | upper.t()).double()
    with torch.no_grad():
        for parameter in machine.parameters():
            parameter.copy_(30 * torch.randn(parameter.shape, generator=g, dtype=torch.float64))
    truth = float(logsumexp(log_weights(*(p.detach().numpy() for p in machine.couplings()))))
    assert exact(machine).value == pytest.approx(truth, rel=1e-13)
    annealed = ais(machine, torch.Generator().manual_seed(0), num_temperatures=300)
    for found in (annealed, tempering(machine, torch.Generator().manual_seed(0), num_sweeps=300)):
        assert abs(found.value - truth) < 4 * found.standard_error, found


@pytest.mark.parametrize("swept", [False, True])
@pytest.mark.parametrize("weight", [0.3, 49.9])
def test_energies_of_the_engine_are_exact_to_float64(weight: float, swept: bool) -> None:
    """D(z) + c·z = -E(z) to rounding, whether the engine has the field at hand or computes it anew.

    At the small coupling the side drawn first stays in float32; energies must not show it.
    """
    prior = equal_couplings(100, 100, weight, -0.1)
    c = torch.linspace(-1, 1, 200, dtype=torch.float32)
    noise = Noise(torch.Generator().manual_seed(0), torch.device("cpu"))
    engine = BlockGibbs(prior, 50, c, exact_energies=True)
    engine.draw_base(noise)
    if swept:
        engine.sweep(noise, torch.linspace(0, 1, 50, dtype=torch.float64))
    z = engine.states().double().numpy()
    bias, matrix = (p.detach().numpy() for p in prior.couplings())
    wanted = z @ (bias - c.double().numpy()) + 0.5 * np.einsum("si,ij,sj->s", z, matrix, z)
    np.testing.assert_allclose(engine.gap().numpy(), wanted, rtol=1e-13, atol=1e-9)
    assert [block.acc.dtype for block in engine.blocks] == [
        torch.float32 if weight < 1 else torch.float64,
        torch.float64,
    ]
