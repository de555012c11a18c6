"""The protocol of a sampler: chains in, chains out."""

from typing import Protocol, runtime_checkable

import torch
from torch import Tensor

from dvaepp.priors.base import BoltzmannPrior


@runtime_checkable
class Sampler(Protocol):
    """Anything that advances chains (chains, units) of a prior; `gibbs` is one."""

    def __call__(
        self, prior: BoltzmannPrior, z: Tensor, num_sweeps: int, generator: torch.Generator | None = None
    ) -> Tensor: ...
