"""Block Gibbs sampling (App. E): the chains behind the gradient of log Z."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from dvaepp.distributed import Shard
from dvaepp.errors import UsageError
from dvaepp.priors.base import BoltzmannPrior
from dvaepp.samplers.base import Chains, Sampler
from dvaepp.samplers.blocks import BlockGibbs
from dvaepp.samplers.noise import Noise


@torch.no_grad()
def gibbs(
    prior: BoltzmannPrior,
    z: Tensor,
    num_sweeps: int,
    generator: torch.Generator | None = None,
    shard: Shard | None = None,
    *,
    clamp: Tensor | None = None,
    values: Tensor | None = None,
) -> Tensor:
    """Run `num_sweeps` sweeps over all units on chains z (chains, units); returns new chains, no gradient.

    An RBM alternates its two sides; a general machine goes through the blocks of its colouring. A chain's noise is a
    function of the generator's state and of its place, not of the number of threads; z may be a `shard` of all chains.
    On a CPU the values of parameters and chains are checked; on other devices only shapes are.

    `clamp` is a boolean mask (units,) or (chains, units) of units that are held at their `values`, of either shape too,
    or at those in z where no `values` are given. The chains then follow p(other units | clamped ones). It is fastest to
    give all chains one mask and one set of values, because these make a smaller machine (`prior.given`).

    Choose it for samples of a prior that mixes well, and with `clamp` for samples given some of the units.

    >>> z = gibbs(RBM(3, 3), torch.zeros(10, 6), num_sweeps=100, generator=torch.Generator().manual_seed(0))
    >>> gibbs(RBM(3, 3), z, 100, clamp=torch.arange(6) < 3)[:, :3].equal(z[:, :3])
    True
    """
    if num_sweeps < 1:
        raise UsageError(f"num_sweeps must be at least 1, got {num_sweeps}")
    prior.check_states_shape(z)
    if z.is_cpu:  # on other devices this check would wait for the device in every step of training
        prior.check()
    if clamp is None:
        if values is not None:
            raise UsageError("values need clamp, a boolean mask of the units that have them")
        if z.is_cpu:
            prior.check_states(z)
        return _swept(prior, z, num_sweeps, generator, shard)
    clamp, values = prior.check_clamp(clamp, z if values is None else values, num_chains=len(z))
    prior.check_states(torch.where(clamp, values.to(z.dtype), z))
    if not clamp.dim() == values.dim() == 1:
        return _swept(prior, z, num_sweeps, generator, shard, (clamp, values))
    found = values.to(z.dtype).expand_as(z).clone()
    if not bool(clamp.all()):
        found[:, ~clamp] = _swept(prior.given(clamp, values), z[:, ~clamp], num_sweeps, generator, shard)
    return found


def _swept(
    prior: BoltzmannPrior,
    z: Tensor,
    num_sweeps: int,
    generator: torch.Generator | None,
    shard: Shard | None,
    clamped: tuple[Tensor, Tensor] | None = None,
) -> Tensor:
    engine = BlockGibbs(prior, len(z))
    if clamped is not None:
        engine.clamp(*clamped)
    engine.set_states(z)
    engine.run(Noise(generator, engine.device, shard), num_sweeps)
    return engine.states().to(z.dtype)


@dataclass(frozen=True)
class GibbsSampler(Sampler):
    """Block Gibbs on persistent chains.

    Choose it first: it is the paper's choice, and the fastest for a prior that mixes.

    >>> from dvaepp.samplers import pcd
    >>> pcd.init(RBM(3, 3), 10, sampler=GibbsSampler()).z.shape
    torch.Size([10, 6])
    """

    takes_shards: ClassVar[bool] = True

    def step(
        self, prior: BoltzmannPrior, chains: Chains, num_sweeps: int, generator: torch.Generator | None = None
    ) -> Chains:
        z = gibbs(prior, chains.z, num_sweeps, generator, chains.shard)
        return chains._replace(z=z, num_sweeps=chains.num_sweeps + num_sweeps)
