"""Exact samples must stay exact; broken samplers must be caught by the same test."""

from collections.abc import Iterator

import numpy as np
import pytest
import torch
from torch import Tensor

from dvaepp.kernels import gibbs as kernel
from dvaepp.priors import RBM, BoltzmannMachine, BoltzmannPrior
from dvaepp.samplers import gibbs
from dvaepp.samplers.blocks import BlockGibbs
from dvaepp.samplers.noise import Noise
from tests.samplers.states import P_VALUE, draw, log_weights, p_value, probabilities

CHAINS = 100_000


def _randomize(prior: BoltzmannPrior, seed: int = 0, sd: float = 1.0) -> BoltzmannPrior:
    g = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in prior.parameters():
            parameter.copy_(sd * torch.randn(parameter.shape, generator=g))
    return prior


def _sparse_mask() -> Tensor:
    mask = torch.zeros(8, 8, dtype=torch.bool)
    for i in range(8):  # a ring with one chord: three colours
        mask[i, (i + 1) % 8] = mask[(i + 1) % 8, i] = True
    mask[0, 2] = mask[2, 0] = True
    return mask


PRIORS = {
    "rbm": lambda: _randomize(RBM(4, 5)),
    "rbm of one unit a side": lambda: _randomize(RBM(1, 1)),
    "dense machine": lambda: _randomize(BoltzmannMachine(6)),
    "ring with a chord": lambda: _randomize(BoltzmannMachine(8, _sparse_mask())),
    "no couplings": lambda: _randomize(BoltzmannMachine(5, torch.zeros(5, 5))),
}


@pytest.fixture(params=["kernel", "plain"])
def path(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    if request.param == "plain":
        monkeypatch.setenv("DVAEPP_KERNEL", "-gibbs")
    elif not kernel.available():
        pytest.skip("no C compiler here")
    yield request.param


def _exact(prior: BoltzmannPrior) -> np.ndarray:
    bias, matrix = (p.detach().double().numpy() for p in prior.couplings())
    return probabilities(log_weights(bias, matrix))


@pytest.mark.parametrize("name", PRIORS)
def test_exact_samples_stay_exact(name: str, path: str) -> None:
    prior = PRIORS[name]()
    p = _exact(prior)
    z = gibbs(prior, draw(p, CHAINS, seed=1), 1, torch.Generator().manual_seed(2))
    assert p_value(z, p) > P_VALUE


@pytest.mark.parametrize("name", PRIORS)
def test_chains_reach_the_distribution(name: str, path: str) -> None:
    prior = PRIORS[name]()
    z = gibbs(prior, torch.zeros(CHAINS, prior.num_units), 60, torch.Generator().manual_seed(3))
    assert p_value(z, _exact(prior)) > P_VALUE


def test_stale_hidden_states_are_caught() -> None:
    """Both sides drawn from the old state: each side's marginal is right, their coupling is not."""
    prior = PRIORS["rbm"]()
    p = _exact(prior)
    engine = BlockGibbs(prior, CHAINS)
    engine.set_states(draw(p, CHAINS, seed=1))
    old = [block.source.clone() for block in engine.blocks]
    noise = Noise(torch.Generator().manual_seed(2), engine.device)
    for block, source in zip(engine.blocks, old, strict=True):
        noise.threshold_(source @ block.weight, block.base, block.delta, None, block.target)
    assert p_value(engine.states(), p) < P_VALUE


def test_a_wrong_bias_is_caught() -> None:
    prior = PRIORS["rbm"]()
    p = _exact(prior)
    z = draw(p, CHAINS, seed=1)
    with torch.no_grad():
        prior.bias_right[0] += 0.2
    assert p_value(gibbs(prior, z, 1, torch.Generator().manual_seed(2)), p) < P_VALUE


def test_reproducible_from_the_generator_and_any_number_of_threads(path: str) -> None:
    prior = _randomize(RBM(100, 60), sd=0.3)
    z = torch.zeros(500, 160)
    results = []
    try:
        for threads in (1, 2, 1):
            torch.set_num_threads(threads)
            results.append(gibbs(prior, z, 5, torch.Generator().manual_seed(7)))
    finally:
        torch.set_num_threads(1)
    # a product may round otherwise on two threads, which moves a unit once in a million
    assert (results[0] != results[1]).float().mean() < 1e-4
    assert torch.equal(results[0], results[2])
    generator = torch.Generator().manual_seed(7)
    gibbs(prior, z, 5, generator)
    assert not torch.equal(gibbs(prior, z, 5, generator), results[0])


def test_no_gradient_and_the_input_is_kept() -> None:
    prior = _randomize(RBM(4, 3)).double()
    z = torch.zeros(10, 7, dtype=torch.float64)
    out = gibbs(prior, z, 3)
    assert out.dtype == torch.float64 and not out.requires_grad and (z == 0).all()


def test_bad_input_is_named() -> None:
    prior = RBM(4, 3)
    with pytest.raises(ValueError, match=r"chains must have shape \(chains, 7\), got \(10, 6\)"):
        gibbs(prior, torch.zeros(10, 6), 1)
    with pytest.raises(ValueError, match="chains must be 0 or 1, got 0.5"):
        gibbs(prior, torch.full((10, 7), 0.5), 1)
    with pytest.raises(ValueError, match="num_sweeps must be at least 1, got 0"):
        gibbs(prior, torch.zeros(10, 7), 0)
    with torch.no_grad():
        prior.weight[0, 0] = torch.nan
    with pytest.raises(ValueError, match="weight of the prior must be finite"):
        gibbs(prior, torch.zeros(10, 7), 1)
