"""What no sampler sees by itself: a narrow deep mode, found by starting from states that lie in it."""

import json
import math

import numpy as np
import pytest
import torch
from scipy.special import gammaln, logsumexp

from dvaepp.log_partition import LogPartition, compare_starts, exact, log_partition, lower_bound, tempering
from dvaepp.log_partition.starts import with_starts
from dvaepp.priors import RBM, BoltzmannMachine
from tests.log_partition.test_log_partition import _enumerated, _machine, _rbm, two_modes
from tests.samplers.states import all_states, log_weights

FREE = 100 * math.log(2)  # 69.3: independent units at zero field


def narrow_mode(depth: float = 124.1) -> RBM:
    """A hundred units at zero field, and ten that are off; with all ten on, the hundred are on and -E is `depth`.

    The ten cost 1000 - depth together and add 1 each to the field of the hundred, so that nine of them on do not pay.
    """
    prior = RBM(100, 10).double()
    with torch.no_grad():
        prior.weight.fill_(1.0)
        prior.bias_right.fill_(depth / 10 - 100)
    return prior


def log_z_of_narrow_mode(depth: float = 124.1) -> float:
    """log Σ_k C(10, k) e^(k (depth / 10 - 100)) (1 + e^k)^100 over the number k of the ten that are on."""
    k = np.arange(11)
    ways = gammaln(11) - gammaln(k + 1) - gammaln(11 - k)
    return float(logsumexp(ways + k * (depth / 10 - 100) + 100 * np.logaddexp(0, k)))


def test_tempering_cannot_see_a_narrow_deep_mode_and_the_given_states_can() -> None:
    prior, truth = narrow_mode(), log_z_of_narrow_mode()
    assert truth == pytest.approx(124.1, abs=0.01) and exact(prior).value == pytest.approx(truth, abs=1e-9)
    found = log_partition(prior, "tempering", torch.Generator().manual_seed(0), num_sweeps=1000)
    assert found.value == pytest.approx(FREE, abs=0.01) and found.diagnostics["warnings"] == []
    states = torch.ones(3, 110)
    states[1:, 0] = 0  # not all of them at the peak
    compared = compare_starts(prior, states, found, torch.Generator().manual_seed(1))
    assert compared.lower_bound == pytest.approx(truth, abs=0.01)
    assert "log Z is at least 124.1" in compared.warnings[0] and "misses a mode" in compared.warnings[0]
    assert "chains that start from the 3 given states" in compared.warnings[1] and "not mixed" in compared.warnings[1]


def test_chains_from_a_mode_show_it_where_the_bound_is_too_weak() -> None:
    """A hundred units of each side are free in the deep mode too: the bound sums those of one side, not 2^100 others.

    log Z is 300 log 2 = 207.9 without the mode and 110 + 200 log 2 = 248.6 with it; the bound proves about 186.
    """
    prior = RBM(200, 120).double()
    with torch.no_grad():
        prior.weight[:100, :20] = 0.5
        prior.bias_right[:20] = 110 / 20 - 50
    found = log_partition(prior, "tempering", torch.Generator().manual_seed(0), num_sweeps=400)
    assert found.value == pytest.approx(300 * math.log(2), abs=0.05)
    deep = (torch.rand(40, 320, generator=torch.Generator().manual_seed(1)) < 0.5).float()
    deep[:, :100] = deep[:, 200:220] = 1
    compared = compare_starts(prior, deep, found, torch.Generator().manual_seed(1))
    assert 180 < compared.lower_bound < 190
    assert len(compared.warnings) == 1 and "chains that start from the 40 given states" in compared.warnings[0]


def test_a_different_second_estimate_is_told() -> None:
    prior = _rbm(8, 8, 0.5)
    truth = _enumerated(prior)
    for offset, expected in ((0.0, []), (-0.5, ["chains that start from the 1 given states give log Z ="])):
        claimed = LogPartition(truth + offset, 0.01, "ais", {"warnings": []})
        warnings = compare_starts(prior, torch.zeros(1, 16), claimed, torch.Generator().manual_seed(0)).warnings
        found = [warning for warning in warnings if "at least" not in warning]
        assert len(found) == len(expected) and all(part in w for part, w in zip(expected, found, strict=True))


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(2))
def test_a_well_mixed_machine_passes_from_any_states(seed: int) -> None:
    """Also states far from the prior, and a mode that tempering has found: both are forgotten."""
    g = torch.Generator().manual_seed(seed)
    for prior in (_rbm(30, 30, 0.3, seed), two_modes()):
        found = tempering(prior, torch.Generator().manual_seed(seed), num_sweeps=1000)
        coins = (torch.rand(50, prior.num_units, generator=g) < 0.5).float()
        for states in (coins, torch.ones(1, prior.num_units)):
            compared = compare_starts(prior, states, found, g)
            assert compared.warnings == [] and compared.lower_bound < found.value + 0.1, compared


@pytest.mark.parametrize("prior", [_rbm(5, 7, 1.0), _rbm(7, 5, 1.0), _machine(9, 0.3), _machine(8, 1.0)])
def test_the_bound_is_log_z_given_all_states_and_below_it_given_some(prior: RBM | BoltzmannMachine) -> None:
    states = torch.tensor(all_states(prior.num_units), dtype=torch.float32)
    truth = float(logsumexp(log_weights(*(p.detach().numpy() for p in prior.couplings()))))
    repeated = torch.cat([states, states])  # a state counts once
    assert lower_bound(prior, repeated) == pytest.approx(truth, abs=1e-9)
    g = torch.Generator().manual_seed(0)
    for count in (1, 3, 30):
        some = states[torch.randperm(len(states), generator=g)[:count]]
        weights = -prior.double().energy(some.double()).detach().numpy()
        assert float(logsumexp(weights)) - 1e-9 <= lower_bound(prior, some) < truth


def test_the_start_is_used_and_forgotten() -> None:
    """The first state goes to the prior's own level of the first replica, and log Z does not depend on the start."""
    from dvaepp.samplers.noise import Noise
    from dvaepp.samplers.tempering import Tempering

    noise = Noise(torch.Generator().manual_seed(0), torch.device("cpu"))
    run = Tempering(RBM(3, 3), [0.0, 0.5, 1.0], 4, torch.zeros(6), noise)
    states = (torch.arange(8)[:, None] >> torch.arange(6) & 1).float()
    run.start_from(states)
    assert torch.equal(run.states(-1), states[:4]) and torch.equal(run.states(-2), states[4:])
    prior = _rbm(10, 10, 1.0)
    found = tempering(prior, torch.Generator().manual_seed(0), num_sweeps=500, initial=torch.ones(1, 20))
    assert abs(found.value - _enumerated(prior)) < 4 * found.standard_error


def test_the_outcome_joins_the_diagnostics() -> None:
    prior = narrow_mode()
    claimed = LogPartition(FREE, 0.01, "tempering", {"num_sweeps": 200, "warnings": ["another"]})
    found = with_starts(prior, claimed, torch.ones(1, 110), torch.Generator().manual_seed(0))
    assert found.value == FREE and found.diagnostics["warnings"][0] == "another"
    assert "misses a mode" in found.diagnostics["warnings"][1]
    assert found.diagnostics["starts"]["lower_bound"] == pytest.approx(124.1, abs=0.01)
    assert found.diagnostics["starts"]["num_states"] == 1 and claimed.diagnostics["warnings"] == ["another"]
    json.dumps(found.diagnostics, allow_nan=False)


def test_bad_states_are_named() -> None:
    prior, claimed = RBM(3, 3), LogPartition(6 * math.log(2), 0.0, "exact", {"warnings": []})
    with pytest.raises(ValueError, match=r"states must have shape \(chains, 6\), got \(2, 5\)"):
        compare_starts(prior, torch.zeros(2, 5), claimed)
    with pytest.raises(ValueError, match="states must be 0 or 1, got 0.5"):
        lower_bound(prior, torch.full((2, 6), 0.5))
    with pytest.raises(ValueError, match=r"initial must have shape \(chains, 6\), got \(2, 5\)"):
        tempering(prior, num_sweeps=10, initial=torch.zeros(2, 5))
    with pytest.raises(ValueError, match="the estimate of log Z must be finite, got nan"):
        compare_starts(prior, torch.zeros(2, 6), claimed._replace(value=math.nan))
