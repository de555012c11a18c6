"""Chains with clamped units follow the enumerated conditional; a sampler that conditions wrongly is caught."""

from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor

from dvaepp.errors import UsageError
from dvaepp.priors import RBM, BoltzmannMachine, BoltzmannPrior
from dvaepp.samplers import gibbs
from tests.samplers.states import P_VALUE, all_states, log_weights, p_value, probabilities
from tests.samplers.test_gibbs import _randomize, _sparse_mask

CHAINS = 20_000
PRIORS: dict[str, Callable[[], BoltzmannPrior]] = {
    "rbm": lambda: _randomize(RBM(3, 4)),
    "dense machine": lambda: _randomize(BoltzmannMachine(6)),
    "ring with a chord": lambda: _randomize(BoltzmannMachine(8, _sparse_mask())),
}
every = pytest.mark.parametrize("name", PRIORS)


def conditional(prior: BoltzmannPrior, clamp: Tensor, values: Tensor) -> np.ndarray:
    """p(z | clamped units) over all states: zero where a state contradicts them."""
    bias, matrix = (p.detach().double().numpy() for p in prior.couplings())
    states = all_states(prior.num_units)
    agrees = (states[:, clamp.numpy()] == values.numpy()[clamp.numpy()]).all(1)
    return probabilities(np.where(agrees, log_weights(bias, matrix), -np.inf))


def _known(prior: BoltzmannPrior, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Three clamped units, on both sides of an RBM, and values for them; what is not clamped holds nonsense."""
    clamp = torch.zeros(prior.num_units, dtype=torch.bool)
    clamp[[0, 2, prior.num_units - 1]] = True
    bits = torch.randint(0, 2, (prior.num_units,), generator=torch.Generator().manual_seed(seed)).float()
    return clamp, torch.where(clamp, bits, torch.nan)


def _free_p_value(z: Tensor, p: np.ndarray, clamp: Tensor) -> float:
    """Chi-squared of the free units alone: states that contradict the clamped ones are left out of p and none of z."""
    states = all_states(len(clamp))
    possible = p > 0
    kept = np.zeros(2 ** int((~clamp).sum()))
    powers = 2 ** np.arange(int((~clamp).sum()))[::-1]
    np.add.at(kept, (states[possible][:, ~clamp.numpy()] @ powers).astype(int), p[possible])
    return p_value(z[:, ~clamp], kept)


@every
def test_one_mask_for_all_chains(name: str) -> None:
    prior = PRIORS[name]()
    clamp, values = _known(prior)
    z = gibbs(
        prior, torch.zeros(CHAINS, prior.num_units), 30, torch.Generator().manual_seed(1), clamp=clamp, values=values
    )
    assert (z[:, clamp] == values[clamp]).all()
    assert _free_p_value(z, conditional(prior, clamp, values), clamp) > P_VALUE


@every
def test_values_of_each_chain(name: str) -> None:
    """Half of the chains have other values of the same units, taken from z itself."""
    prior = PRIORS[name]()
    clamp, values = _known(prior)
    other = 1 - values
    start = torch.zeros(2 * CHAINS, prior.num_units)
    start[:CHAINS, clamp], start[CHAINS:, clamp] = values[clamp], other[clamp]
    z = gibbs(prior, start, 30, torch.Generator().manual_seed(2), clamp=clamp)
    assert torch.equal(z[:, clamp], start[:, clamp])
    for part, known in ((z[:CHAINS], values), (z[CHAINS:], other)):
        assert _free_p_value(part, conditional(prior, clamp, known), clamp) > P_VALUE


@every
def test_a_mask_of_each_chain(name: str) -> None:
    prior = PRIORS[name]()
    clamp, values = _known(prior)
    elsewhere = torch.roll(clamp, 1)
    masks = torch.stack([clamp, elsewhere]).repeat_interleave(CHAINS, 0)
    ones = torch.ones(prior.num_units)
    z = gibbs(prior, torch.zeros(len(masks), len(ones)), 30, torch.Generator().manual_seed(3), clamp=masks, values=ones)
    for part, mask in ((z[:CHAINS], clamp), (z[CHAINS:], elsewhere)):
        assert (part[:, mask] == 1).all()
        assert _free_p_value(part, conditional(prior, mask, ones), mask) > P_VALUE


@every
@pytest.mark.parametrize("each", [False, True], ids=["one mask", "a mask each"])
def test_tempered_samples(name: str, each: bool) -> None:
    prior = PRIORS[name]()
    clamp, values = _known(prior)
    shown = clamp.expand(5000, -1) if each else clamp
    z = prior.sample(5000, torch.Generator().manual_seed(4), clamp=shown, values=values, num_sweeps=30)
    assert (z[:, clamp] == values[clamp]).all()
    assert _free_p_value(z, conditional(prior, clamp, values), clamp) > P_VALUE


@every
def test_conditional_marginals_equal_enumeration(name: str) -> None:
    """Within five standard errors of 1000 samples, failure rate 6e-7 per unit.

    A mean of p(z_i|rest) has at most the standard error of one of z_i.
    """
    prior = PRIORS[name]().double()
    clamp, values = _known(prior)
    found = prior.conditional_marginals(clamp, values, torch.Generator().manual_seed(5), num_samples=1000)
    expected = torch.from_numpy(conditional(prior, clamp, values) @ all_states(prior.num_units))
    error = (expected * (1 - expected) / 1000).sqrt()
    assert ((found - expected).abs() <= 5 * error + 1e-12).all()
    assert found.dtype == torch.float64
    free = prior.conditional_marginals(torch.zeros_like(clamp), values, num_samples=1000)
    assert ((free - expected).abs() > 5 * error).any(), "nothing was conditioned on"


def _ignores_the_clamped_field(prior: BoltzmannPrior, z: Tensor, clamp: Tensor, values: Tensor) -> Tensor:
    """Broken: runs the free units as if the clamped ones were 0, then writes their values in."""
    rest = prior.given(clamp, torch.zeros_like(values))
    found = values.expand_as(z).clone()
    found[:, ~clamp] = gibbs(rest, z[:, ~clamp], 30, torch.Generator().manual_seed(1))
    return found


def _writes_values_at_the_end(prior: BoltzmannPrior, z: Tensor, clamp: Tensor, values: Tensor) -> Tensor:
    """Broken: the units run free and are overwritten afterwards."""
    return torch.where(clamp, values, gibbs(prior, z, 30, torch.Generator().manual_seed(1)))


@every
@pytest.mark.parametrize("broken", [_ignores_the_clamped_field, _writes_values_at_the_end])
def test_broken_conditioning_is_caught(name: str, broken: Callable[..., Tensor]) -> None:
    prior = PRIORS[name]()
    clamp, values = _known(prior)
    values = torch.where(clamp, torch.ones_like(values), values)
    z = broken(prior, torch.zeros(CHAINS, prior.num_units), clamp, values)
    assert _free_p_value(z, conditional(prior, clamp, values), clamp) < P_VALUE


def test_all_units_clamped_and_none() -> None:
    prior = _randomize(RBM(2, 3))
    bits, z = torch.tensor([1.0, 0, 1, 1, 0]), torch.zeros(4, 5)
    everything = torch.ones(5, dtype=torch.bool)
    assert torch.equal(gibbs(prior, z, 3, clamp=everything, values=bits), bits.expand(4, -1))
    assert torch.equal(prior.sample(4, clamp=everything, values=bits), bits.expand(4, -1))
    assert torch.equal(prior.conditional_marginals(everything, bits), bits)
    free = gibbs(prior, z, 3, torch.Generator().manual_seed(0), clamp=~everything, values=bits)
    assert torch.equal(free, gibbs(prior, z, 3, torch.Generator().manual_seed(0)))
    with pytest.raises(ValueError, match="all 5 units are clamped"):
        prior.given(everything, bits)


def test_a_whole_side_may_be_clamped() -> None:
    """The other side is then drawn independently, from its exact conditional in one sweep."""
    prior = _randomize(RBM(2, 3))
    clamp = torch.tensor([True, True, False, False, False])
    values = torch.tensor([1.0, 0, 0, 0, 0])
    rest = prior.given(clamp, values)
    assert len(rest.blocks()) == 1
    z = gibbs(prior, torch.zeros(CHAINS, 5), 1, torch.Generator().manual_seed(6), clamp=clamp, values=values)
    assert _free_p_value(z, conditional(prior, clamp, values), clamp) > P_VALUE


def test_bad_clamping_is_named() -> None:
    prior, z = RBM(2, 3), torch.zeros(4, 5)
    some = torch.tensor([True, False, False, False, False])
    cases: list[tuple[dict[str, Tensor], str]] = [
        ({"clamp": some[:4], "values": z[0]}, r"shape \(5,\) or \(4, 5\), got \(4,\) and \(5,\)"),
        ({"clamp": some, "values": torch.zeros(3, 5)}, r"got \(5,\) and \(3, 5\)"),
        ({"clamp": some.float(), "values": z[0]}, "clamp must be a boolean mask, True where a unit is known"),
        ({"clamp": some, "values": z[0] + 0.5}, "values of clamped units must be 0 or 1, got 0.5"),
    ]
    for options, message in cases:
        with pytest.raises(ValueError, match=message):
            gibbs(prior, z, 1, **options)
    with pytest.raises(UsageError, match="values need clamp"):
        gibbs(prior, z, 1, values=z[0])
    with pytest.raises(UsageError, match="clamp and values go together"):
        prior.sample(4, clamp=some)
