"""log Z along a path of parameters: walkers beside the exact sum, and the simpler estimates that they must not be."""

import math

import pytest
import torch
from torch import Tensor

from dvaepp.log_partition import exact, follow
from dvaepp.priors import RBM, BoltzmannMachine
from dvaepp.priors.base import BoltzmannPrior
from dvaepp.samplers import pcd
from tests import enumeration

SIDES = 16, 14
STEPS, LOOK = 400, 50


def _path(seed: int = 0) -> tuple[list[RBM], list[Tensor]]:
    """An RBM trained on random patterns by its chains with Adam, at every step, and the chains of its gradients."""
    generator = torch.Generator().manual_seed(seed)
    prior = RBM(*SIDES)
    patterns = (torch.rand(4, prior.num_units, generator=generator) < 0.5).float()
    optimizer = torch.optim.Adam(prior.parameters(), lr=0.02, eps=1e-3)
    chains = pcd.init(prior, 100, generator)
    path, states = [RBM(*SIDES)], [chains.z]
    for _ in range(STEPS):
        chains = pcd.step(prior, chains, generator, 2)
        flips = torch.rand(100, prior.num_units, generator=generator) < 0.1
        data = (patterns[torch.randint(4, (100,), generator=generator)] - flips.float()).abs()
        optimizer.zero_grad()
        (prior.energy(data).mean() + prior.log_z_surrogate(chains.z)).backward()
        optimizer.step()
        path.append(RBM(*SIDES))
        path[-1].load_state_dict(prior.state_dict())
        states.append(chains.z)
    return path, states


@pytest.fixture(scope="module")
def path() -> tuple[list[RBM], list[Tensor]]:
    return _path()


def _followed(path: list[RBM], seed: int) -> list[float]:
    """log Z at every look, followed from the start without another anchor."""
    generator = torch.Generator().manual_seed(seed)
    coins = (torch.rand(follow.WALKERS, path[0].num_units, generator=generator) < 0.5).float()
    walkers, found = follow.start(path[0], coins, path[0].num_units * math.log(2)), []
    for prior in path[LOOK::LOOK]:
        walkers = follow.follow(walkers, prior, generator, LOOK)
        found.append(walkers.log_z)
    return found


def test_walkers_stay_near_the_exact_log_z_of_a_training_path(path: tuple[list[RBM], list[Tensor]]) -> None:
    """Over 8 looks and 8 seeds the mean error is within 4 standard errors (a failure rate of 1e-4) plus the known
    downward bias of a logarithm, half the variance; a single path errs by less than 0.8 nat where log Z moves by 10."""
    priors, states = path
    true = torch.tensor([exact(prior).value for prior in priors[LOOK::LOOK]], dtype=torch.float64)
    errors = torch.tensor([_followed(priors, seed) for seed in range(8)], dtype=torch.float64) - true
    assert (true - priors[0].num_units * math.log(2)).abs().max() > 8
    assert errors.abs().max() < 0.8
    slack = 4 * errors.std(0) / math.sqrt(8) + errors.var(0)
    assert bool((errors.mean(0).abs() < slack).all())


def test_a_held_value_and_the_chains_of_the_gradient_would_be_caught(path: tuple[list[RBM], list[Tensor]]) -> None:
    priors, states = path
    start, end = priors[0].num_units * math.log(2), exact(priors[-1]).value
    assert abs(start - end) > 8  # log Z held since the start
    with torch.no_grad():
        changes = [
            (old.energy(z) - new.energy(z)).mean().item()
            for old, new, z in zip(priors, priors[1:], states[1:], strict=False)
        ]
    assert abs(start + sum(changes) - end) > 2  # the chains that the gradient has just made less probable


@pytest.mark.parametrize("prior", [RBM(3, 2), BoltzmannMachine(5, graph=[(0, 3), (1, 3), (1, 2), (2, 4), (0, 4)])])
def test_free_energies_of_walkers_equal_enumeration(prior: BoltzmannPrior) -> None:
    generator = torch.Generator().manual_seed(3)
    for parameter in prior.parameters():
        parameter.data.normal_(generator=generator)
    z = (torch.rand(6, 5, generator=generator) < 0.5).float()
    bias, matrix = (p.detach().double().numpy() for p in prior.couplings())
    form = prior.block_form()
    first = list(range(5))[form.conditionals[0].out] if form.order is None else form.order[form.conditionals[0].out]
    expected = [enumeration.free_energy(row, [int(i) for i in first], bias, matrix) for row in z.double().numpy()]
    assert follow._free_energy(prior, z).tolist() == pytest.approx(expected, abs=1e-5)


def test_drawing_anew_keeps_the_estimate_and_an_anchor_replaces_it() -> None:
    generator = torch.Generator().manual_seed(0)
    prior = RBM(4, 4)
    walkers = follow.start(prior, torch.zeros(1, 8, dtype=torch.float32), 5.0)
    uneven = walkers._replace(log_weights=torch.linspace(-30, 3, follow.WALKERS, dtype=torch.float64))
    again = follow._evened(uneven, generator)
    assert again.log_z == pytest.approx(uneven.log_z) and not again.log_weights.any()
    assert follow.anchored(uneven, 7.0, generator).log_z == 7.0
