"""The noise of a batch, drawn for the whole batch even where this process computes only some of its rows."""

from dataclasses import dataclass

import torch
from torch import Tensor

from dvaepp.distributed import Shard
from dvaepp.numerics import uniform, working_dtype


def repeated(x: Tensor, copies: int) -> Tensor:
    """`copies` of the rows of x, one after another."""
    return x if copies == 1 else x.repeat(copies, *(1 for _ in x.shape[1:]))


@dataclass(frozen=True)
class BatchNoise:
    """Uniform and normal noise of shape (rows, ...), where the rows are `copies` of a batch, one after another.

    With `shard` a draw covers the whole batch and keeps the rows of the shard, so that the noise of an example does not
    depend on how many processes share the batch.
    """

    generator: torch.Generator | None
    device: torch.device
    shard: Shard | None = None
    copies: int = 1
    dtype: torch.dtype = torch.float32

    def uniform(self, *shape: int) -> Tensor:
        return self._own(uniform(*self._all(shape), generator=self.generator, device=self.device, dtype=self.dtype))

    def normal_like(self, mean: Tensor) -> Tensor:
        """Normal noise for maps (rows, channels, height, width), laid out channels-last as the maps are."""
        if mean.dim() != 4:
            return self.normal(*mean.shape)
        rows, channels, height, width = mean.shape
        return self.normal(rows, height, width, channels).permute(0, 3, 1, 2)

    def normal(self, *shape: int) -> Tensor:
        return self._own(
            torch.randn(
                *self._all(shape), generator=self.generator, device=self.device, dtype=working_dtype(self.dtype)
            )
        )

    def _all(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        return shape if self.shard is None else (self.copies * self.shard.total, *shape[1:])

    def _own(self, drawn: Tensor) -> Tensor:
        if self.shard is None:
            return drawn
        each = drawn.unflatten(0, (self.copies, self.shard.total))
        return each[:, self.shard.first : self.shard.last].flatten(0, 1)
