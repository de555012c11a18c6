"""What crosses the border of a device: sweeps let nothing cross, a training step only what it must."""

from collections.abc import Callable

import pytest
import torch

from dvaepp.priors import BoltzmannPrior
from dvaepp.samplers import gibbs
from dvaepp.samplers.blocks import BlockGibbs
from dvaepp.samplers.noise import Noise
from dvaepp.samplers.tempering import Tempering
from tests.devices.simulated import Simulation, device, simulated
from tests.devices.test_public import KINDS, Place


@pytest.mark.parametrize("kind", KINDS)
def test_gibbs_waits_for_nothing(kind: str) -> None:
    with simulated() as simulation:
        place = Place(device())
        prior, generator = place.prior(kind), place.generator()
        z = (place.uniform(6, prior.num_units) < 0.5).float()
        _forget(simulation)
        gibbs(prior, z, 5, generator)
        assert simulation.crossings == 0, (simulation.copies, simulation.waits)


@pytest.mark.parametrize("kind", KINDS)
def test_sweeps_of_tempering_and_annealing_wait_for_nothing(kind: str) -> None:
    with simulated() as simulation:
        place = Place(device())
        prior, noise = place.prior(kind), Noise(place.generator(), device())
        base = torch.zeros(prior.num_units, device=device())
        run, engine = Tempering(prior, [0.0, 0.3, 1.0], 4, base, noise), BlockGibbs(prior, 6, base, exact_energies=True)
        engine.draw_base(noise)
        _forget(simulation)
        for _ in range(4):
            run.sweep()
            engine.sweep(noise, torch.full((6,), 0.5, dtype=torch.float64, device=device()))
            engine.gap()
        assert simulation.crossings == 0, (simulation.copies, simulation.waits)


@pytest.mark.parametrize(
    "broken", [lambda run: run.swap_rates(), lambda run: run.round_trips, lambda run: run.states().cpu()]
)
def test_a_sweep_that_waits_is_counted(broken: Callable[[Tempering], object]) -> None:
    with simulated() as simulation:
        place = Place(device())
        prior: BoltzmannPrior = place.prior("rbm")
        run = Tempering(prior, [0.0, 1.0], 4, torch.zeros(7, device=device()), Noise(place.generator(), device()))
        _forget(simulation)
        broken(run)
        assert simulation.crossings == 1


def _forget(simulation: Simulation) -> None:
    simulation.copies.clear()
    simulation.waits.clear()
