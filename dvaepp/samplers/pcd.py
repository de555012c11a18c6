"""Persistent chains (App. E): a record that the training loop carries and the checkpoint saves."""

import torch

from dvaepp.distributed import Shard
from dvaepp.priors.base import BoltzmannPrior
from dvaepp.samplers.base import Chains, Sampler
from dvaepp.samplers.gibbs import GibbsSampler

NUM_SWEEPS = 40  # App. E
GIBBS = GibbsSampler()


def init(
    prior: BoltzmannPrior,
    num_chains: int,
    generator: torch.Generator | None = None,
    shard: Shard | None = None,
    sampler: Sampler = GIBBS,
) -> Chains:
    """Chains of fair coins; `num_chains` is 1000 in the paper, 100 is a good default on a CPU."""
    return sampler.init(prior, num_chains, generator, shard)


def step(
    prior: BoltzmannPrior,
    chains: Chains,
    generator: torch.Generator | None = None,
    num_sweeps: int = NUM_SWEEPS,
    sampler: Sampler = GIBBS,
) -> Chains:
    """Advance the chains after a parameter update, with the sampler that made them."""
    return sampler.step(prior, chains, num_sweeps, generator)
