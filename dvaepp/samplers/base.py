"""What a sampler of Boltzmann priors owes training: chains in, chains out.

A member is a frozen dataclass in a file of this folder, and the file's stem is its name in a recipe
(`chains.sampler=tempering`); its fields are the options (`chains.options`). All that it must remember from one step to
the next is in the record of its chains, so that a checkpoint saves it and a resumed run goes on bit for bit.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor

from dvaepp.distributed import Shard
from dvaepp.errors import UsageError
from dvaepp.priors.base import BoltzmannPrior


class Chains(NamedTuple):
    """Persistent chains z (chains, units), and how many sweeps they have made.

    Where several processes share the chains, `shard` says which of them these are. A tempered sampler keeps its chains
    at higher temperatures in `hot` (chains, levels, units), from the hottest level on; z is the level after the last.

    Choose it to carry chains through a training loop of your own, with `samplers.pcd`.

    >>> from dvaepp.samplers import pcd
    >>> pcd.step(RBM(3, 3), pcd.init(RBM(3, 3), 10), num_sweeps=5).num_sweeps
    5
    """

    z: Tensor
    num_sweeps: int
    shard: Shard | None = None
    hot: Tensor | None = None

    def __repr__(self) -> str:
        levels = "" if self.hot is None else f" at {self.hot.shape[1]} temperatures"
        return f"Chains({self.z.shape[0]} of {self.z.shape[1]} units{levels}, {self.num_sweeps} sweeps)"


@dataclass(frozen=True)
class Sampler(ABC):
    """Draws the samples whose mean energy has the gradient of log Z (App. E).

    Choose it as the base of a sampler of your own, which then drives training as `chains.sampler` of a recipe.

    >>> isinstance(GibbsSampler(), Sampler)
    True
    """

    takes_shards: ClassVar[bool] = False
    """Whether the chains may be spread over many processes."""

    @property
    def states_per_chain(self) -> int:
        """How many states a chain holds, by which the memory of a run is estimated."""
        return 1

    def init(
        self,
        prior: BoltzmannPrior,
        num_chains: int,
        generator: torch.Generator | None = None,
        shard: Shard | None = None,
    ) -> Chains:
        """Chains of fair coins."""
        if num_chains < 1:
            raise UsageError(f"num_chains must be at least 1, got {num_chains}")
        if shard is not None and not self.takes_shards:
            raise UsageError(f"{type(self).__name__} runs in one process: chains.sampler=gibbs takes many")
        z = fair_coins((num_chains, prior.num_units), prior, generator)
        return Chains(z if shard is None else z[shard.first : shard.last], 0, shard)

    @abstractmethod
    def step(
        self, prior: BoltzmannPrior, chains: Chains, num_sweeps: int, generator: torch.Generator | None = None
    ) -> Chains:
        """Advance the chains by `num_sweeps` sweeps at the present parameters of the prior."""


def fair_coins(shape: tuple[int, ...], prior: BoltzmannPrior, generator: torch.Generator | None) -> Tensor:
    noise = torch.rand(shape, generator=generator, dtype=torch.float32, device=prior.couplings().bias.device)
    return (noise < 0.5).float()
