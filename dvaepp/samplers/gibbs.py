"""Block Gibbs sampling (App. E): the chains behind the gradient of log Z."""

import torch
from torch import Tensor

from dvaepp.errors import UsageError
from dvaepp.priors.base import BoltzmannPrior
from dvaepp.ranks import Shard
from dvaepp.samplers.blocks import BlockGibbs
from dvaepp.samplers.noise import Noise


@torch.no_grad()
def gibbs(
    prior: BoltzmannPrior,
    z: Tensor,
    num_sweeps: int,
    generator: torch.Generator | None = None,
    shard: Shard | None = None,
) -> Tensor:
    """Run `num_sweeps` sweeps over all units on chains z (chains, units); returns new chains, no gradient.

    An RBM alternates its two sides; a general machine goes through the blocks of its colouring. A chain's noise is a
    function of the generator's state and of its place, not of the number of threads; z may be a `shard` of all chains.
    """
    if num_sweeps < 1:
        raise UsageError(f"num_sweeps must be at least 1, got {num_sweeps}")
    prior.check()
    prior.check_states(z)
    engine = BlockGibbs(prior, len(z))
    engine.set_states(z)
    engine.run(Noise(generator, engine.device, shard), num_sweeps)
    return engine.states().to(z.dtype)
