"""log Z against sums that share no code with it, and error bars that mean what they say."""

import importlib
import subprocess
import sys

import numpy as np
import pytest
import torch

from dvaepp.log_partition import LogPartition, ais, exact, log_partition, tempering
from dvaepp.log_partition.diagnostics import split_r_hat
from dvaepp.log_partition.tempering import MAX_DRIFT, _drift, bennett
from dvaepp.priors import RBM, BoltzmannMachine, to_bqm
from tests.samplers.states import log_weights


def _rbm(left: int, right: int, sd: float, seed: int = 0) -> RBM:
    g = torch.Generator().manual_seed(seed)
    prior = RBM(left, right).double()
    with torch.no_grad():
        for parameter, spread in ((prior.weight, sd), (prior.bias_left, 1.0), (prior.bias_right, 1.0)):
            parameter.copy_(spread * torch.randn(parameter.shape, generator=g, dtype=torch.float64))
    return prior


def _enumerated(prior: RBM) -> float:
    """Sum over all states of the left side by numpy, the right side in closed form."""
    a, b, w = (p.detach().numpy() for p in (prior.bias_left, prior.bias_right, prior.weight))
    states = (np.arange(2 ** len(a))[:, None] >> np.arange(len(a)) & 1).astype(float)
    terms = states @ a + np.logaddexp(0, b + states @ w).sum(1)
    return float(terms.max() + np.log(np.exp(terms - terms.max()).sum()))


@pytest.mark.parametrize("sd", [0.1, 0.5, 1.0, 2.0])
def test_exact_ais_and_tempering_equal_enumeration(sd: float) -> None:
    """16 x 16: exact to 1e-9, the others within max(3 standard errors, 0.01 nat)."""
    prior = _rbm(16, 16, sd)
    truth = _enumerated(prior)
    assert exact(prior).value == pytest.approx(truth, abs=1e-9)
    for method in ("ais", "tempering"):
        found = log_partition(prior, method, torch.Generator().manual_seed(0))
        assert abs(found.value - truth) <= max(3 * found.standard_error, 0.01), found
        assert 0 < found.standard_error < 0.05 and found.diagnostics["warnings"] == [] and found.method == method


@pytest.mark.parametrize("shape", [(16, 5), (5, 16), (1, 1), (14, 14)])
def test_exact_enumerates_whichever_side_is_smaller(shape: tuple[int, int]) -> None:
    prior = _rbm(*shape, 1.0)
    found = exact(prior)
    assert found.value == pytest.approx(_enumerated(prior), abs=1e-9)
    assert found.diagnostics["num_enumerated"] == min(shape)


def _machine(units: int, density: float, seed: int = 0) -> BoltzmannMachine:
    g = torch.Generator().manual_seed(seed)
    upper = torch.triu(torch.rand(units, units, generator=g) < density, 1)
    machine = BoltzmannMachine(units, upper | upper.t()).double()
    with torch.no_grad():
        machine.weight.copy_(torch.randn(units, units, generator=g, dtype=torch.float64))
        machine.bias.copy_(torch.randn(units, generator=g, dtype=torch.float64))
    return machine


@pytest.mark.parametrize("density", [0.0, 0.3, 1.0])
def test_general_machines_too(density: float) -> None:
    machine = _machine(11, density)
    weights = log_weights(*(p.detach().numpy() for p in machine.couplings()))
    truth = float(np.logaddexp.reduce(weights))
    assert exact(machine).value == pytest.approx(truth, abs=1e-9)
    for method, options in (("ais", {"num_temperatures": 300}), ("tempering", {"num_sweeps": 500})):
        found = log_partition(machine, method, torch.Generator().manual_seed(1), **options)
        assert abs(found.value - truth) <= max(3.5 * found.standard_error, 0.01), found


def test_exact_equals_tree_decomposition() -> None:
    samplers = pytest.importorskip("dwave.samplers")
    prior = _rbm(16, 16, 0.5)
    result = samplers.TreeDecompositionSampler().sample(to_bqm(prior), num_reads=1, beta=1.0, seed=0)
    assert exact(prior).value == pytest.approx(result.info["log_partition_function"], abs=1e-9)


@pytest.mark.slow
@pytest.mark.parametrize("method", ["ais", "tempering"])
def test_error_bars_cover_the_truth(method: str) -> None:
    """200 repeats at 10 x 10: the 95 % interval covers in 0.895 to 0.99 of them."""
    prior = _rbm(10, 10, 1.0)
    truth = _enumerated(prior)
    options = {"ais": {"num_temperatures": 50, "num_chains": 128}, "tempering": {"num_sweeps": 150}}[method]
    covered = 0
    for seed in range(200):
        found = log_partition(prior, method, torch.Generator().manual_seed(seed), **options)
        covered += abs(found.value - truth) <= 1.96 * found.standard_error
    assert 0.895 <= covered / 200 <= 0.99, covered


def two_modes() -> RBM:
    """12 x 12 units that agree: all off or all on, with a barrier that plain Gibbs does not cross.

    E of both modes is near zero; a state half on costs about 36 nats.
    """
    prior = RBM(12, 12).double()
    with torch.no_grad():
        prior.weight.fill_(1.0)
        prior.bias_left.fill_(-6.0)
        prior.bias_right.fill_(-6.0)
        prior.bias_left[0] += 1.0  # the modes differ, so that a lost one shows in log Z
    return prior


@pytest.mark.slow
def test_tempering_finds_both_modes_of_a_machine_that_gibbs_never_crosses() -> None:
    from dvaepp.samplers import gibbs

    prior = two_modes()
    truth = _enumerated(prior)
    start = torch.zeros(40, 24)
    start[20:] = 1
    stuck = gibbs(prior, start, 10_000, torch.Generator().manual_seed(0)).mean(1)
    assert (stuck[:20] < 0.2).all() and (stuck[20:] > 0.8).all()
    found = tempering(prior, torch.Generator().manual_seed(0), num_sweeps=12_000)
    assert abs(found.value - truth) < 0.02, found
    assert found.diagnostics["warnings"] == [] and found.diagnostics["round_trips"] > 1000

    from dvaepp.samplers.noise import Noise
    from dvaepp.samplers.tempering import Tempering

    noise = Noise(torch.Generator().manual_seed(1), torch.device("cpu"))
    run = Tempering(prior, found.diagnostics["ladder"], 200, torch.zeros(24), noise)
    for _ in range(1000):
        run.sweep()
    share = (run.states().mean(1) > 0.5).float().mean().item()
    p_on = np.exp(1.0) / (1 + np.exp(1.0))  # the two modes' energies differ by one
    assert abs(share - p_on) < 0.2


def test_chains_that_have_not_mixed_are_reported() -> None:
    found = tempering(two_modes(), torch.Generator().manual_seed(0), num_sweeps=20)
    assert any("num_sweeps" in warning for warning in found.diagnostics["warnings"])
    rough = ais(_rbm(40, 40, 3.0), torch.Generator().manual_seed(0), num_temperatures=1, num_chains=100)
    assert "raise num_temperatures" in rough.diagnostics["warnings"][0]


def test_weights_of_annealing_must_be_worth_400_samples() -> None:
    """Even weights of few chains ask for chains, uneven ones of many chains for temperatures."""
    prior = _rbm(8, 8, 1.0)
    few = ais(prior, torch.Generator().manual_seed(0), num_chains=300)
    assert few.diagnostics["warnings"][0].endswith("not above 400; raise num_chains")
    uneven = ais(_rbm(30, 30, 3.0), torch.Generator().manual_seed(0), num_chains=2000, num_temperatures=1)
    assert uneven.diagnostics["warnings"][0].endswith("not above 400; raise num_temperatures")
    assert ais(prior, torch.Generator().manual_seed(0), num_chains=500).diagnostics["warnings"] == []


def test_a_run_of_default_length_goes_on_until_its_chains_have_mixed(monkeypatch: pytest.MonkeyPatch) -> None:
    """A length that was asked for is kept, mixed or not; the default one doubles, and stops at eight times."""
    module = importlib.import_module("dvaepp.log_partition.tempering")  # the package's own name is the function
    monkeypatch.setattr(module, "default_sweeps", lambda units: 25)
    prior = _rbm(16, 16, 1.0)
    asked = tempering(prior, torch.Generator().manual_seed(0), num_sweeps=25)
    assert asked.diagnostics["num_sweeps"] == 25 and asked.diagnostics["warnings"]
    found = tempering(prior, torch.Generator().manual_seed(0))
    assert found.diagnostics["num_sweeps"] in (50, 100, 200) and found.diagnostics["warnings"] == []
    assert abs(found.value - _enumerated(prior)) < 4 * found.standard_error
    hopeless = tempering(two_modes(), torch.Generator().manual_seed(0))
    assert hopeless.diagnostics["num_sweeps"] == 200
    assert any("R-hat" in w and "raise num_sweeps, now 200" in w for w in hopeless.diagnostics["warnings"])


def test_a_drift_is_seen_that_no_single_temperature_shows() -> None:
    """Twenty levels, each of whose means moves by a tenth of its spread: R-hat is below 1.01, log Z moves by 1.9."""
    g = torch.Generator().manual_seed(0)
    ladder = torch.linspace(0, 1, 21, dtype=torch.float64)
    steady = 20 * torch.randn(1000, 32, 21, generator=g, dtype=torch.float64)
    moving = steady + 2 * (torch.arange(1000) >= 500)[:, None, None]
    assert max(split_r_hat(moving[..., level]) for level in range(21)) < 1.01
    assert abs(_drift(steady, ladder)) < MAX_DRIFT < _drift(moving, ladder)


def test_levels_that_share_nothing_have_no_error_bar() -> None:
    """D a million apart: Bennett's equation says nothing about the difference, and neither may the result."""
    gaps = torch.tensor([0.0, 1e6], dtype=torch.float64).expand(20, 8, 2)
    found = bennett(gaps, torch.tensor([0.0, 1.0], dtype=torch.float64))
    assert found.standard_error == float("inf")


def test_auto_sums_where_it_can_and_tempers_otherwise() -> None:
    assert log_partition(_rbm(12, 30, 0.5)).method == "exact"
    large = log_partition(_rbm(40, 40, 0.1), "auto", torch.Generator().manual_seed(0), num_sweeps=100)
    assert isinstance(large, LogPartition) and large.method == "tempering"
    assert {"swap_rates", "effective_sample_size", "r_hat", "warnings"} <= large.diagnostics.keys()


def test_estimates_repeat_with_the_generator() -> None:
    prior = _rbm(8, 8, 1.0)
    for method, options in (("ais", {"num_temperatures": 20}), ("tempering", {"num_sweeps": 20})):
        a, b = (log_partition(prior, method, torch.Generator().manual_seed(3), **options).value for _ in range(2))
        assert a == b


def test_bennett_recovers_a_known_difference() -> None:
    """D normal at β = 0 with variance v is normal at β = 1 with mean shifted by v: r = mean + v / 2 exactly."""
    g = torch.Generator().manual_seed(0)
    mean, variance = 2.0, 1.5
    noise = torch.randn(2000, 40, 2, generator=g, dtype=torch.float64) * variance**0.5
    gaps = mean + noise + torch.tensor([0.0, variance])
    value, error, _ = bennett(gaps, torch.tensor([0.0, 1.0], dtype=torch.float64))
    assert abs(value - (mean + variance / 2)) < 4 * error < 0.05


@pytest.mark.slow
def test_memory_of_24_units_stays_below_a_gigabyte() -> None:
    code = (
        "import torch, resource; torch.set_num_threads(1)\n"
        "from dvaepp.priors import RBM; from dvaepp.log_partition import exact\n"
        "prior = RBM(24, 30); prior.bias_left.data.normal_(generator=torch.Generator().manual_seed(0))\n"
        "before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss\n"
        "value = exact(prior).value\n"
        "import math; truth = sum(math.log1p(math.exp(b)) for b in prior.bias_left.tolist()) + 30 * math.log(2)\n"
        "assert abs(value - truth) < 1e-8, (value, truth)\n"
        "print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    unit = 1 if sys.platform == "darwin" else 1024
    assert int(out) * unit < 2**30


def test_bad_input_is_named() -> None:
    with pytest.raises(
        ValueError, match=r"would enumerate 2\^30 states; at most 24 .* Use method='tempering' or 'ais'"
    ):
        log_partition(RBM(30, 31), "exact")
    with pytest.raises(ValueError, match="method must be one of auto, exact, ais, tempering, got 'guess'"):
        log_partition(RBM(3, 3), "guess")
    with pytest.raises(ValueError, match="num_temperatures >= 1, got 1024 and 0"):
        log_partition(RBM(3, 3), "ais", num_temperatures=0)
    with pytest.raises(ValueError, match="num_sweeps >= 10 .* got 0 and 32"):
        log_partition(RBM(3, 3), "tempering", num_sweeps=0)
    broken = RBM(3, 3)
    with torch.no_grad():
        broken.bias_left[0] = torch.nan
    for method in ("exact", "ais", "tempering"):
        with pytest.raises(ValueError, match="bias_left of the prior must be finite"):
            log_partition(broken, method)


def test_options_of_tempering_do_not_break_a_sum_that_auto_chooses() -> None:
    assert log_partition(RBM(3, 3), num_sweeps=100, num_replicas=4).method == "exact"


@pytest.mark.parametrize(
    ("method", "options"), [("auto", {"num_sweps": 3}), ("exact", {"num_sweeps": 3}), ("ais", {"num_sweeps": 3})]
)
def test_options_that_a_method_has_not_are_refused_by_name(method: str, options: dict[str, int]) -> None:
    with pytest.raises(
        ValueError, match=rf"method '{method}' has no option '{next(iter(options))}'; it takes .*progress"
    ):
        log_partition(RBM(3, 3), method, **options)
