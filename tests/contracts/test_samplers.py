"""Laws of every sampler that may drive training: exact chains stay exact, and the record holds all it remembers."""

from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor

from dvaepp.distributed import Shard
from dvaepp.errors import UsageError
from dvaepp.priors import RBM, BoltzmannMachine, BoltzmannPrior
from dvaepp.samplers import MEMBERS, Chains, GibbsSampler, Sampler, TemperingSampler, pcd
from tests.samplers.states import P_VALUE, all_states, draw, log_weights, p_value, probabilities
from tests.samplers.test_gibbs import _randomize

CHAINS = 20_000
EXAMPLES: dict[str, Callable[[], Sampler]] = {
    "gibbs": GibbsSampler,
    "tempering": lambda: TemperingSampler(num_temperatures=3),
    "dimod": lambda: MEMBERS["dimod"](),
}
PRIORS = {"rbm": lambda: _randomize(RBM(3, 3)), "ring": lambda: _randomize(BoltzmannMachine(5, "ring"))}


@pytest.fixture(params=sorted(MEMBERS))
def sampler(request: pytest.FixtureRequest) -> Sampler:
    if request.param == "dimod":
        pytest.importorskip("dwave.samplers", reason="extra dwave")
    return EXAMPLES[request.param]()


def _exact(prior: BoltzmannPrior, levels: int) -> list[np.ndarray]:
    """The distributions of the path whose couplings, and nothing else, are tempered; the last is the prior's."""
    bias, matrix = (p.detach().double().numpy() for p in prior.couplings())
    betas = [level / (levels - 1) for level in range(levels)] if levels > 1 else [1.0]
    return [probabilities(log_weights(bias, beta * matrix)) for beta in betas]


def _exact_chains(prior: BoltzmannPrior, sampler: Sampler) -> Chains:
    levels = _exact(prior, sampler.states_per_chain)
    *hot, z = [draw(p, CHAINS, seed) for seed, p in enumerate(levels)]
    return Chains(z, 0, None, torch.stack(hot, 1) if hot else None)


@pytest.mark.parametrize("name", PRIORS)
def test_chains_follow_the_prior(name: str, sampler: Sampler) -> None:
    """Chains that are exact stay exact; an annealer, which draws afresh, comes near the marginals."""
    prior = PRIORS[name]()
    generator = torch.Generator().manual_seed(1)
    levels = _exact(prior, sampler.states_per_chain)
    after = sampler.step(prior, _exact_chains(prior, sampler), 2, generator)
    if type(sampler) is MEMBERS["dimod"]:
        after = sampler.step(prior, after._replace(z=after.z[:3000]), 200, generator)
        mean = levels[-1] @ all_states(prior.num_units)
        assert np.abs(after.z.mean(0).numpy() - mean).max() < 0.06  # 5 standard errors, and the annealer's own bias
        return
    assert p_value(after.z, levels[-1]) > P_VALUE
    for level in range(len(levels) - 1):
        assert after.hot is not None
        assert p_value(after.hot[:, level], levels[level]) > P_VALUE


def test_a_broken_path_is_caught() -> None:
    """The same test on chains of a prior whose couplings are stronger."""
    prior, sampler = PRIORS["rbm"](), TemperingSampler(num_temperatures=3)
    chains, levels = _exact_chains(prior, sampler), _exact(prior, 3)
    with torch.no_grad():
        prior.weight *= 1.3
    assert p_value(sampler.step(prior, chains, 2, torch.Generator().manual_seed(1)).z, levels[-1]) < P_VALUE


def test_the_record_and_the_generator_are_all_there_is(sampler: Sampler) -> None:
    """Two steps in one go, and with the record copied and the generator's state set back between them."""
    prior = PRIORS["rbm"]()
    generator = torch.Generator().manual_seed(3)
    first = pcd.step(prior, pcd.init(prior, 20, generator, sampler=sampler), generator, 3, sampler)
    state = generator.get_state()
    second = pcd.step(prior, first, generator, 3, sampler)
    assert first.num_sweeps == 3 and second.num_sweeps == 6
    again = torch.Generator()
    again.set_state(state)
    copied = Chains(*(part.clone() if isinstance(part, Tensor) else part for part in first))
    resumed = pcd.step(prior, copied, again, 3, type(sampler)(**vars(sampler)))
    for a, b in zip(second, resumed, strict=True):
        assert torch.equal(a, b) if isinstance(a, Tensor) else a == b


def test_chains_have_the_shape_and_type_of_the_record(sampler: Sampler) -> None:
    prior = PRIORS["ring"]()
    chains = pcd.init(prior, 7, torch.Generator().manual_seed(0), sampler=sampler)
    after = pcd.step(prior, chains, torch.Generator().manual_seed(0), 2, sampler)
    for record in (chains, after):
        assert record.z.shape == (7, 5) and record.z.dtype == torch.float32
        states = record.z.numel() + (0 if record.hot is None else record.hot.numel())
        assert states == 7 * 5 * sampler.states_per_chain
    with pytest.raises(ValueError, match="num_chains must be at least 1, got 0"):
        pcd.init(prior, 0, sampler=sampler)


def test_shards_are_taken_or_refused(sampler: Sampler) -> None:
    shard = Shard(2, 5, 6)
    if sampler.takes_shards:
        assert pcd.init(PRIORS["rbm"](), 6, shard=shard, sampler=sampler).z.shape == (3, 6)
    else:
        with pytest.raises(UsageError, match="runs in one process: chains.sampler=gibbs takes many"):
            pcd.init(PRIORS["rbm"](), 6, shard=shard, sampler=sampler)


def test_other_temperatures_are_refused() -> None:
    with pytest.raises(UsageError, match="num_temperatures must be from 2 to 400, got 1"):
        TemperingSampler(num_temperatures=1)
    prior = RBM(2, 2)
    chains = pcd.init(prior, 3, sampler=TemperingSampler(num_temperatures=4))
    with pytest.raises(UsageError, match="not of a sampler with 8 temperatures"):
        TemperingSampler().step(prior, chains, 1)


def test_an_unknown_solver_is_named() -> None:
    pytest.importorskip("dwave.samplers", reason="extra dwave")
    with pytest.raises(UsageError, match="dwave-samplers has no 'Annealer'; it has .*SimulatedAnnealingSampler"):
        MEMBERS["dimod"](sampler="Annealer")
