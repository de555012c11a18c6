"""Images of the run's data set with their codes, encoded piece by piece: the page never waits for all of them."""

from typing import Any

import torch
from torch import Tensor

from dvaepp.codes import HammingIndex, Neighbours
from dvaepp.data import Dataset, subset
from dvaepp.errors import UsageError
from dvaepp.models.trained import Trained

MOST = 10_000  # images of the test set
PIECE = 100  # images encoded at a time, between two answers


class Library:
    """The test images of a data set, at most `MOST`, in the order in which they are encoded."""

    def __init__(self, trained: Trained, dataset: Dataset) -> None:
        if tuple(dataset.sample_shape) != tuple(trained.model.sample_shape):
            raise UsageError(f"its images have the shape {dataset.sample_shape}, not {trained.model.sample_shape}")
        self._trained, self._dataset = trained, dataset
        rows = subset(len(dataset.test), MOST)
        order = torch.randperm(len(rows), generator=torch.Generator("cpu").manual_seed(0), device="cpu")
        self._rows = rows[order]
        self._codes = HammingIndex(trained.model.num_units) if trained.model.binary_code else None

    def __len__(self) -> int:
        return len(self._rows)

    @property
    def encoded(self) -> int:
        return 0 if self._codes is None else len(self._codes)

    def grow(self) -> bool:
        """Encode the next images; whether some are left."""
        if self._codes is None or self.encoded == len(self):
            return False
        end = min(self.encoded + PIECE, len(self))
        rows = torch.arange(self.encoded, end, dtype=torch.int64, device="cpu")
        self._codes.add(self._trained.encode(self.images(rows)).bool().cpu().numpy())
        return self.encoded < len(self)

    def images(self, places: Tensor) -> Tensor:
        """Images as the model takes them."""
        return self._dataset.images("test", self._rows[places])

    def some(self, count: int, generator: torch.Generator) -> Tensor:
        """Places of images drawn at random."""
        return torch.randperm(len(self), generator=generator, device="cpu")[:count]

    def nearest(self, bits: Tensor, count: int) -> Neighbours:
        """The nearest of the codes that are there so far, for one code (units,)."""
        if self._codes is None or not self.encoded:
            raise UsageError("the images of the data set are not encoded yet: ask again in a moment")
        return self._codes.search(bits[None].bool().cpu().numpy(), min(count, self.encoded))

    def state(self) -> dict[str, Any]:
        return {"name": self._dataset.name, "images_in_all": len(self), "encoded": self.encoded}
