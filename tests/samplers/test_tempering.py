import numpy as np
import pytest
import torch
from torch import Tensor

from dvaepp.priors import RBM, BoltzmannMachine, BoltzmannPrior
from dvaepp.samplers.noise import Noise
from dvaepp.samplers.tempering import Tempering, adapt_ladder, check_ladder
from tests.samplers.states import P_VALUE, draw, log_weights, p_value, probabilities
from tests.samplers.test_gibbs import CHAINS, _randomize

LADDER = [0.0, 0.4, 1.0]
PRIORS = {
    "rbm": lambda: _randomize(RBM(3, 4), sd=1.5),
    "dense machine": lambda: _randomize(BoltzmannMachine(5), sd=1.5),
}


def _start(prior: BoltzmannPrior, kind: type[Tempering] = Tempering) -> tuple[Tempering, list[np.ndarray]]:
    """Replicas with exact samples at every level of the path c·z + β D(z), and those levels' distributions."""
    bias, matrix = (p.detach().double().numpy() for p in prior.couplings())
    base = torch.linspace(-1, 1, prior.num_units)
    end, start = log_weights(bias, matrix), log_weights(base.double().numpy(), 0 * matrix)
    levels = [probabilities((1 - beta) * start + beta * end) for beta in LADDER]
    run = kind(prior, LADDER, CHAINS, base, Noise(torch.Generator().manual_seed(0), torch.device("cpu")))
    states = torch.stack([draw(p, CHAINS, seed) for seed, p in enumerate(levels)], 1)  # (replicas, levels, units)
    run.engine.set_states(states.reshape(-1, prior.num_units))
    return run, levels


@pytest.mark.parametrize("name", PRIORS)
def test_exact_samples_stay_exact_at_every_temperature(name: str) -> None:
    run, levels = _start(PRIORS[name]())
    for _ in range(2):  # an even and an odd round of swaps
        gap = run.sweep()
    for level, p in enumerate(levels):
        assert p_value(run.states(level), p) > P_VALUE, f"level {level}"
    bias, matrix = PRIORS[name]().couplings()
    z = run.states(1)
    base = torch.linspace(-1, 1, z.shape[1])
    expected = z @ (bias - base) + 0.5 * ((z @ matrix) * z).sum(1)
    torch.testing.assert_close(gap[:, 1], expected.detach().double(), rtol=1e-4, atol=1e-4)
    assert all(0.05 < rate < 0.95 for rate in run.swap_rates())


class _SwapsByFreeEnergy(Tempering):
    """Tempers the joint energy but exchanges by the free energy of the left side."""

    def swap(self, gap: Tensor) -> Tensor:
        prior = PRIORS["rbm"]()
        z = self.engine.states()
        free = -prior.free_energy(z, slice(3, 7)).detach() - z @ torch.linspace(-1, 1, 7)
        return super().swap(free.double())


class _SwapsTheWrongWay(Tempering):
    """The sign of the acceptance turned round."""

    def swap(self, gap: Tensor) -> Tensor:
        return super().swap(-gap)


@pytest.mark.parametrize("broken", [_SwapsByFreeEnergy, _SwapsTheWrongWay])
def test_broken_swaps_are_caught(broken: type[Tempering]) -> None:
    run, levels = _start(PRIORS["rbm"](), broken)
    for _ in range(2):
        run.sweep()
    assert min(p_value(run.states(level), p) for level, p in enumerate(levels)) < P_VALUE


def test_rows_and_levels_stay_permutations_and_round_trips_are_counted() -> None:
    prior = _randomize(RBM(5, 5), sd=0.3)
    run = Tempering(prior, LADDER, 50, torch.zeros(10), Noise(torch.Generator().manual_seed(0), torch.device("cpu")))
    for _ in range(40):
        run.sweep()
    assert torch.equal(run.row_of.sort(1).values, torch.arange(3).repeat(50, 1))
    assert np.allclose(run._beta.gather(1, run.row_of), LADDER)
    assert 50 < run.round_trips < 50 * 40


def test_ladder_adapts_number_and_spacing() -> None:
    """A stronger machine gets more temperatures, and neighbours swap near the target rate on both."""
    lengths = []
    for sd in (0.3, 3.0):
        prior = _randomize(RBM(20, 20), sd=sd)
        noise = Noise(torch.Generator().manual_seed(0), torch.device("cpu"))
        adapted = adapt_ladder(prior, torch.zeros(40), noise, target_swap_rate=0.6)
        check_ladder(adapted.ladder)
        lengths.append(len(adapted.ladder))
        assert min(adapted.swap_rates) > 0.4
    assert lengths[1] > 2 * lengths[0]


@pytest.mark.parametrize("ladder", [[], [0.0], [0.0, 0.5], [0.1, 1.0], [0.0, 0.5, 0.5, 1.0], [0.0, 1.0, 0.5]])
def test_bad_ladders_are_named(ladder: list[float]) -> None:
    with pytest.raises(ValueError, match="a ladder of inverse temperatures must increase from 0 to 1"):
        check_ladder(ladder)
    with pytest.raises(ValueError, match="must increase from 0 to 1"):
        Tempering(RBM(2, 2), ladder, 4, torch.zeros(4), Noise(None, torch.device("cpu")))
