"""Images that stay in their file: batches are read from a map of it, so that an array may be larger than memory."""

from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Int, Shaped
from torch import Tensor

from dvaepp.data.formats import Array
from dvaepp.data.reading import Reading, pieces


@dataclass(frozen=True, eq=False)
class Mapped:
    """The images `order` of an array (n, height, width, channels), which is a map of a file.

    Indexing works as on a tensor of bytes (n, channels, height, width) and reads the images that are asked for. With a
    `seed` the images are grey and come as bits, x ~ Bernoulli(grey / 255): the same bits whenever an image is read.
    """

    array: Array
    order: Array
    reading: Reading
    seed: int | None = None

    def __len__(self) -> int:
        return len(self.order)

    @property
    def shape(self) -> torch.Size:
        return torch.Size((len(self), *self.reading.shape(self.array)))

    def __getitem__(self, index: Int[Tensor, " images"] | slice) -> Shaped[Tensor, "_ channels height width"]:
        chosen = index if isinstance(index, slice) else index.cpu().numpy()
        images = self.reading(self.array[self.order[chosen]])
        if self.seed is not None:
            images = self._bits(images, np.arange(len(self))[chosen])
        return torch.from_numpy(images)

    def mean(self) -> Array:
        """The mean image in float64, (channels, height, width), in one pass over the file."""
        total = np.zeros(self.shape[1:])
        chosen = np.zeros(len(self.array), dtype=bool)
        chosen[self.order] = True
        for place in pieces(self.array):  # in the order of the file, which is read from front to back
            total += self.reading(self.array[place][chosen[place]]).sum(axis=0, dtype=np.float64)
        return total / len(self)

    def _bits(self, images: Array, places: Array) -> Array:
        assert self.seed is not None
        streams = [np.random.RandomState((self.seed, int(place))) for place in places]
        draws = [stream.randint(0, 255, images.shape[1:], np.uint8) for stream in streams]
        return (np.array(draws, np.uint8).reshape(images.shape) < images).astype(np.uint8)
