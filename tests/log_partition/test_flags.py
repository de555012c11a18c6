"""Runs made bad on purpose are flagged, good ones are not: 100 x 100 machines with several modes and a known log Z.

A run is bad when log Z is off by more than 0.1 nat or by more than five of its standard errors.
"""

from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np
import pytest
import torch
from scipy.special import gammaln, logsumexp

from dvaepp.log_partition import LogPartition, tempering
from dvaepp.priors import RBM

Machine = tuple[RBM, float]  # and its log Z


def _rbm(weight: np.ndarray, left: np.ndarray, right: np.ndarray) -> RBM:
    prior = RBM(*weight.shape).double()
    with torch.no_grad():
        for parameter, value in ((prior.weight, weight), (prior.bias_left, left), (prior.bias_right, right)):
            parameter.copy_(torch.from_numpy(value))
    return prior


def independent_blocks(strength: float, seed: int) -> Machine:
    """Ten independent blocks of 10 x 10 spins ±1 that agree with a random pattern or its opposite: 2^10 modes.

    log Z is the sum of the blocks' own, each over the 2^10 states of its left side.
    """
    rng = np.random.default_rng(seed)
    weight, left, right, log_z = np.zeros((100, 100)), np.zeros(100), np.zeros(100), 0.0
    states = (np.arange(2**10)[:, None] >> np.arange(10) & 1).astype(float)
    for k in range(10):
        block = slice(10 * k, 10 * k + 10)
        pattern = np.outer(*(rng.choice([-1.0, 1.0], 10) for _ in range(2)))
        couplings = strength * (1 + 0.2 * rng.normal(size=(10, 10))) * pattern
        weight[block, block] = couplings
        left[block] = -couplings.sum(1) / 2 + 0.6 * rng.normal(size=10)
        right[block] = -couplings.sum(0) / 2
        log_z += logsumexp(states @ left[block] + np.logaddexp(0, right[block] + states @ couplings).sum(1))
    return _rbm(weight, left, right), float(log_z)


def planted_groups(strength: float, seed: int) -> Machine:
    """Each side is two groups of 50 alike units, coupled so strongly that each group has two modes: four in all.

    -E depends on the left side through two counts, over which log Z is summed; the right side is summed analytically.
    """
    rng = np.random.default_rng(seed)
    coupling = strength / 25 * (1 + 0.3 * rng.normal(size=(2, 2))) * np.array([[1, 0.5], [-0.5, 1]])
    weight = np.kron(coupling, np.ones((50, 50)))
    left, right = -weight.sum(1) / 2 + 0.02 * rng.normal(), -weight.sum(0) / 2
    k = np.arange(51)
    ways = gammaln(51) - gammaln(k + 1) - gammaln(51 - k)
    first, second = np.meshgrid(k, k, indexing="ij")
    terms = ways[first] + ways[second] + first * left[0] + second * left[50]
    for group in range(2):
        field = right[50 * group] + first * coupling[0, group] + second * coupling[1, group]
        terms = terms + 50 * np.logaddexp(0, field)
    return _rbm(weight, left, right), float(logsumexp(terms))


class Outcome(NamedTuple):
    found: LogPartition
    truth: float

    @property
    def bad(self) -> bool:
        error = abs(self.found.value - self.truth)
        return error > 0.1 or error > 5 * self.found.standard_error

    @property
    def flagged(self) -> bool:
        return bool(self.found.diagnostics["warnings"])


Machines = list[tuple[Callable[[float, int], Machine], float]]  # kinds with their strengths, taken in turn
HARD: Machines = [(planted_groups, 3.5), (independent_blocks, 1.0), (planted_groups, 4.0)]
FAIR: Machines = [(independent_blocks, 0.5), (planted_groups, 2.0)]


def outcomes(machines: Machines, num_sweeps: int | None, count: int) -> Iterator[Outcome]:
    for seed in range(count):
        machine, strength = machines[seed % len(machines)]
        prior, truth = machine(strength, seed)
        yield Outcome(tempering(prior, torch.Generator().manual_seed(seed), num_sweeps=num_sweeps), truth)


def test_the_machines_log_z_is_known() -> None:
    """Each block again, by all pairs of states of its two sides; couplings between blocks are zero."""
    prior, log_z = independent_blocks(1.0, 0)
    a, b, w = (p.detach().numpy() for p in (prior.bias_left, prior.bias_right, prior.weight))
    states = (np.arange(2**10)[:, None] >> np.arange(10) & 1).astype(float)
    total = 0.0
    for k in range(10):
        s = slice(10 * k, 10 * k + 10)
        pairs = states @ w[s, s] @ states.T + (states @ a[s])[:, None] + (states @ b[s])[None]
        total += logsumexp(pairs)
        assert not w[s, : 10 * k].any() and not w[s, 10 * k + 10 :].any()
    assert log_z == pytest.approx(total, abs=1e-9)


@pytest.mark.slow
def test_bad_runs_are_flagged() -> None:
    """Runs too short by one or two orders of magnitude.

    Two of five runs of 400 sweeps are bad. Their chains swap and make round trips, and the earlier limit of 1.1 on
    R-hat passed two thirds of them.
    """
    short = [outcome for outcome in outcomes(HARD, 20, 6) if outcome.bad]
    medium = [outcome for outcome in outcomes(HARD, 400, 9) if outcome.bad]
    assert len(short) >= 5 and len(medium) >= 3
    assert all(outcome.flagged for outcome in short + medium)


@pytest.mark.slow
def test_good_runs_are_not_flagged() -> None:
    """Runs of the default length, which go on where their diagnostics ask for more."""
    good = list(outcomes(FAIR, None, 3))
    assert not any(outcome.bad for outcome in good), good
    assert not any(outcome.flagged for outcome in good), [o.found.diagnostics["warnings"] for o in good]
