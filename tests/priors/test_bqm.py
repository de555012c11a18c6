import math
import sys
from copy import deepcopy

import numpy as np
import pytest
import torch

from dvaepp.errors import UsageError
from dvaepp.priors import RBM, BoltzmannMachine, BoltzmannPrior, from_bqm, to_bqm
from tests import enumeration

dimod = pytest.importorskip("dimod")


def _random(prior: BoltzmannPrior, seed: int = 0) -> BoltzmannPrior:
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in prior.parameters():
            parameter.normal_(generator=generator)
    return prior


def _sparse_machine() -> BoltzmannMachine:
    mask = torch.zeros(6, 6, dtype=torch.bool)
    for i, j in [(0, 1), (1, 4), (2, 5), (0, 5)]:
        mask[i, j] = mask[j, i] = True
    return BoltzmannMachine(6, mask)


priors = pytest.mark.parametrize(
    "prior", [_random(RBM(3, 4).double()), _random(BoltzmannMachine(5).double()), _random(_sparse_machine()), RBM(1, 2)]
)


def _states(prior: BoltzmannPrior) -> torch.Tensor:
    return torch.tensor(enumeration.states(prior.num_units))


def _energies(prior: BoltzmannPrior) -> np.ndarray:
    return deepcopy(prior).double().energy(_states(prior)).detach().numpy()


@priors
def test_bqm_has_the_priors_energy_on_all_states_binary_and_spin(prior: BoltzmannPrior) -> None:
    bqm = to_bqm(prior)
    z = _states(prior).numpy()
    labels = list(range(prior.num_units))
    assert bqm.vartype is dimod.BINARY
    expected = _energies(prior)
    np.testing.assert_allclose(bqm.energies((z.astype(int), labels)), expected, rtol=0, atol=1e-12)
    spins = (2 * z - 1).astype(int)
    np.testing.assert_allclose(bqm.spin.energies((spins, labels)), expected, rtol=0, atol=1e-12)


@priors
def test_variables_are_in_the_order_of_the_units(prior: BoltzmannPrior) -> None:
    """A sampler returns columns in the order of `bqm.variables`, and so does `from_bqm` with units."""
    assert list(to_bqm(prior).variables) == list(range(prior.num_units))


@priors
def test_there_and_back_keeps_the_energy(prior: BoltzmannPrior) -> None:
    machine = from_bqm(to_bqm(prior))
    assert machine.num_units == prior.num_units and machine.weight.dtype == torch.float64
    np.testing.assert_allclose(_energies(machine), _energies(prior), rtol=0, atol=1e-12)


def test_only_couplings_of_the_model_are_allowed() -> None:
    prior = _sparse_machine()
    _random(prior)
    assert torch.equal(from_bqm(to_bqm(prior)).mask, prior.mask)
    assert len(from_bqm(to_bqm(prior)).blocks()) == len(prior.blocks())


def test_a_spin_model_with_names_keeps_its_energy_up_to_a_constant() -> None:
    """Variables enter in an order that is not alphabetical, and a coupling names the later one first."""
    bqm = dimod.BinaryQuadraticModel("SPIN")
    bqm.add_linear_from({"c": 0.3, "a": -1.2, "b": 0.7})
    bqm.add_quadratic_from({("b", "c"): 1.5, ("a", "c"): -0.8})
    bqm.offset = 2.5
    assert list(bqm.variables) == ["c", "a", "b"]
    machine = from_bqm(bqm)
    z = enumeration.states(3)
    spins = 2 * z - 1
    expected = 0.3 * spins[:, 0] - 1.2 * spins[:, 1] + 0.7 * spins[:, 2]
    expected += 1.5 * spins[:, 2] * spins[:, 0] - 0.8 * spins[:, 1] * spins[:, 0]
    shift = _energies(machine) - expected
    np.testing.assert_allclose(shift, shift[0], rtol=0, atol=1e-12)
    assert bqm.vartype is dimod.SPIN, "the caller's model is left alone"

    again = to_bqm(machine).spin
    for k, name in enumerate(bqm.variables):
        assert again.linear[k] == pytest.approx(bqm.linear[name], abs=1e-12)
    assert again.quadratic[0, 2] == pytest.approx(1.5) and again.quadratic[0, 1] == pytest.approx(-0.8)
    assert (1, 2) not in again.quadratic


def test_another_engine_finds_the_enumerated_log_z_and_marginals() -> None:
    """dwave-samplers' tree decomposition is exact; it reads the model that `to_bqm` writes."""
    samplers = pytest.importorskip("dwave.samplers")
    rng = np.random.default_rng(4)
    bias, weight = rng.normal(size=12), rng.normal(size=(6, 6))
    coupling = np.zeros((12, 12))
    coupling[:6, 6:] = weight
    coupling += coupling.T
    prior = RBM(6, 6).double()
    with torch.no_grad():
        prior.bias_left.copy_(torch.tensor(bias[:6]))
        prior.bias_right.copy_(torch.tensor(bias[6:]))
        prior.weight.copy_(torch.tensor(weight))
    info = samplers.TreeDecompositionSampler().sample(to_bqm(prior), num_reads=1, beta=1.0, marginals=True).info
    assert info["log_partition_function"] == pytest.approx(enumeration.log_partition(bias, coupling), abs=1e-10)
    marginals = [info["variable_marginals"][k] for k in range(12)]
    np.testing.assert_allclose(marginals, enumeration.moments(bias, coupling).first, rtol=0, atol=1e-10)


@pytest.mark.parametrize("value", [math.nan, math.inf])
@pytest.mark.parametrize(("prior", "name"), [(RBM(2, 2), "bias_right"), (BoltzmannMachine(4), "weight")])
def test_parameters_that_are_not_finite_are_named(prior: BoltzmannPrior, name: str, value: float) -> None:
    with torch.no_grad():
        prior.get_parameter(name).view(-1)[1] = value
    with pytest.raises(ValueError, match=f"^{name} of the prior must be finite, got 1 values"):
        to_bqm(prior)


def test_a_missing_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "dimod", None)
    with pytest.raises(UsageError, match=r"pip install 'dvaepp\[dwave\]'"):
        to_bqm(RBM(2, 2))


def test_couplings_that_are_zero_are_kept_and_nan_is_refused() -> None:
    fresh = to_bqm(RBM(2, 2))
    assert list(fresh.variables) == [0, 1, 2, 3] and len(fresh.quadratic) == 4
    assert int(from_bqm(fresh).mask.sum()) == 4
    fresh.set_linear(0, float("nan"))
    with pytest.raises(ValueError, match="must be finite"):
        from_bqm(fresh)
