"""Persistent chains (App. E): a record that the training loop carries and the checkpoint saves."""

from typing import NamedTuple

import torch
from torch import Tensor

from dvaepp.errors import UsageError
from dvaepp.priors.base import BoltzmannPrior
from dvaepp.ranks import Shard
from dvaepp.samplers.base import Sampler
from dvaepp.samplers.gibbs import gibbs

NUM_SWEEPS = 40  # App. E


class Chains(NamedTuple):
    """Persistent chains z (chains, units) and how many sweeps they have made; of many processes each has a `shard`."""

    z: Tensor
    num_sweeps: int
    shard: Shard | None = None


def init(
    prior: BoltzmannPrior, num_chains: int, generator: torch.Generator | None = None, shard: Shard | None = None
) -> Chains:
    """Chains of fair coins; `num_chains` is 1000 in the paper, 100 is a good default on a CPU."""
    if num_chains < 1:
        raise UsageError(f"num_chains must be at least 1, got {num_chains}")
    bias = prior.couplings().bias
    shape = (num_chains, prior.num_units)
    noise = torch.rand(shape, generator=generator, dtype=torch.float32, device=bias.device)
    z = (noise < 0.5).float()
    return Chains(z if shard is None else z[shard.first : shard.last], 0, shard)


def step(
    prior: BoltzmannPrior,
    chains: Chains,
    generator: torch.Generator | None = None,
    num_sweeps: int = NUM_SWEEPS,
    sampler: Sampler = gibbs,
) -> Chains:
    """Advance the chains after a parameter update; `sampler` may be any other engine where there is no shard."""
    if chains.shard is None:
        z = sampler(prior, chains.z, num_sweeps, generator)
    else:
        z = gibbs(prior, chains.z, num_sweeps, generator, chains.shard)
    return chains._replace(z=z, num_sweeps=chains.num_sweeps + num_sweeps)
