"""Noise of a batch: drawn for all rows of the batch, whichever of them are computed here."""

from dataclasses import dataclass

import torch
from torch import Tensor

from dvaepp.numerics import uniform


@dataclass(frozen=True)
class Noise:
    """Uniform and normal noise of shape (rows, ...).

    With `shard` (first, last, rows of the whole batch) a draw covers the whole batch and keeps rows first..last, so
    that an example's noise does not depend on how many processes share the batch.
    """

    generator: torch.Generator | None
    device: torch.device
    shard: tuple[int, int, int] | None = None

    def uniform(self, *shape: int) -> Tensor:
        return self._own(uniform(*self._all(shape), generator=self.generator, device=self.device))

    def normal_like(self, mean: Tensor) -> Tensor:
        """Normal noise for maps (rows, channels, height, width), laid out channels-last as the maps are."""
        if mean.dim() != 4:
            return self.normal(*mean.shape)
        rows, channels, height, width = mean.shape
        return self.normal(rows, height, width, channels).permute(0, 3, 1, 2)

    def normal(self, *shape: int) -> Tensor:
        return self._own(torch.randn(*self._all(shape), generator=self.generator, device=self.device))

    def _all(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        return shape if self.shard is None else (self.shard[2], *shape[1:])

    def _own(self, drawn: Tensor) -> Tensor:
        return drawn if self.shard is None else drawn[self.shard[0] : self.shard[1]]
