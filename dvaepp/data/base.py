"""What a data set is: three splits of images, and how the model sees them.

Images are bytes, in memory or mapped from a file; data for a Gaussian likelihood may be any numbers.

Grey images stay grey in training and are binarised anew each time they are drawn, x ~ Bernoulli(grey / 255);
validation and test are binarised once. The draw compares with u uniform on {0, ..., 254}: P(u < grey) = grey / 255.
"""

import math
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Literal

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from dvaepp.data.formats import Pixels
from dvaepp.data.mapped import Mapped
from dvaepp.errors import UsageError

Numbers = Float[Tensor, "_ channels height width"]
Stored = Pixels | Numbers | Mapped
Seen = Float[Tensor, "_ *sample"]
Indices = Int[Tensor, " images"]
Likelihood = Literal["bernoulli", "logistic_mixture", "gaussian"]

SEEDS = {"train": 0, "validation": 1, "test": 2}
"""One fixed seed per split, for what is binarised once."""


class DataError(OSError):
    """A data file is missing, altered or unreadable; one line names it and the remedy.

    Choose it in an `except` around `load`: something about the files has to be mended.

    >>> issubclass(DataError, OSError)
    True
    """


class NoNetwork(DataError):
    """A file is missing, and none of its servers could be reached.

    Choose it in an `except` around `load` to go on without a network, with another data set.

    >>> issubclass(NoNetwork, DataError)
    True
    """


@dataclass(frozen=True)
class File:
    """A data file by its path below a data folder, its digest ("sha256:..." or "md5:...") and where to get it.

    Choose it to name the files of a data set of your own, in a file of `dvaepp/data/`.

    >>> File("mine/train.npy", "sha256:0123").forms[0].path
    'mine/train.npy'
    """

    path: str
    digest: str  # "": not checked; a file another package installed
    urls: tuple[str, ...] = ()
    member: str = ""  # the file wanted inside a tar archive
    package: str = ""  # "package/path" of a file that an installed package carries
    extra: str = ""  # the extra of dvaepp that installs this package
    stand_in: bool = False  # other pixels under another name, taken only where no other form is found
    others: "tuple[File, ...]" = ()  # further forms of the same content

    @property
    def forms(self) -> "tuple[File, ...]":
        return (self, *self.others)


@dataclass(frozen=True, eq=False)
class Dataset:
    """Images of a data set, split; see the module docstring for the binarisation.

    Choose it to look at what a model is trained on. `dvaepp.data.load` makes one of a name or of files, and
    `dvaepp.data.as_dataset` of a tensor, an array or a torch Dataset.

    >>> data = as_dataset(torch.eye(20).reshape(20, 4, 5))
    >>> data.image_shape, len(data.train), data.batch(torch.arange(3), torch.Generator()).shape
    ((1, 4, 5), 16, torch.Size([3, 1, 4, 5]))
    """

    name: str  # as shown in every output
    image_shape: tuple[int, int, int]  # channels, height, width
    likelihood: Likelihood
    train: Stored  # 0/1 when binary, 0..255 when grey or colour
    validation: Stored  # bernoulli: 0/1, fixed; others: 0..255
    test: Stored
    dynamic: bool  # training images are grey and binarised anew each time they are drawn
    labels: dict[str, Tensor] = field(default_factory=dict)  # per split, where they exist
    checksum: str = ""  # sha256 over the sha256 of the files it was read from, in order of reading
    flat: bool = False  # the model sees rows of numbers, as the data was given, and pictures show `image_shape`
    summary: str = ""  # one line on what was read and how, of images of one's own

    @property
    def sample_shape(self) -> tuple[int, ...]:
        """The shape of one x as the model sees it."""
        return (math.prod(self.image_shape),) if self.flat else self.image_shape

    def __repr__(self) -> str:
        sizes = "/".join(str(len(getattr(self, split))) for split in SEEDS)
        return f"Dataset({self.name!r}, {self.likelihood}, images {self.image_shape}, split {sizes})"

    def check(self) -> None:
        """Refuse parts that do not fit together: what a parser makes of an unfit file."""
        for name in SEEDS:
            images: Tensor = getattr(self, name)
            if len(images) == 0 or tuple(images.shape[1:]) != self.image_shape:
                raise ValueError(f"its {name} images have the shape {tuple(images.shape)}")
            if name in self.labels and len(self.labels[name]) != len(images):
                raise ValueError(f"it has {len(self.labels[name])} labels for {len(images)} {name} images")
            if self.likelihood == "bernoulli" and not (name == "train" and self.dynamic) and images.max() > 1:
                raise ValueError(f"its {name} images have other values than 0 and 1")

    def split(self, name: str) -> Stored:
        """The fixed images of "train", "validation" or "test"; a dynamic train is binarised with a fixed seed."""
        if name not in SEEDS:
            raise UsageError(f"unknown split {name!r}; expected one of {', '.join(SEEDS)}")
        if name == "train" and self.dynamic:
            return self._train_once
        return getattr(self, name)

    def batch(self, indices: Indices, generator: torch.Generator) -> Seen:
        """Training images as the model sees them; dynamic ones are drawn with the generator."""
        images = self.train[indices]
        if self.dynamic:
            draws = torch.randint(255, images.shape, dtype=torch.uint8, generator=generator, device=generator.device)
            images = (draws.to(images.device) < images).to(torch.uint8)
        return self._seen(images)

    def images(self, split: str, indices: Indices | None = None) -> Seen:
        """Fixed images of a split as the model sees them: 0 and 1, or colours in [-1, 1]."""
        images = self.split(split)
        return self._seen(images[:] if indices is None else images[indices])

    @cached_property
    def train_mean(self) -> Float[Tensor, "channels height width"]:
        """Mean of what the model sees in training; the expectation grey / 255 where the images are drawn."""
        if isinstance(self.train, Mapped):
            mean = torch.from_numpy(self.train.mean())
        else:
            mean = torch.from_numpy(self.train.cpu().numpy().mean(axis=0, dtype=np.float64))
        if self.dynamic:
            return (mean / 255).float()
        return seen(mean, self.likelihood, of_bytes=not self.train[:1].is_floating_point()).float()

    @cached_property
    def _train_once(self) -> Pixels | Mapped:
        if isinstance(self.train, Mapped):
            return replace(self.train, seed=SEEDS["train"])
        return binarise_once(self.train, "train")

    def _seen(self, images: Tensor) -> Seen:
        x = seen(images.float(), self.likelihood, of_bytes=not images.is_floating_point())
        return x.flatten(1) if self.flat else x


def seen(levels: Tensor, likelihood: Likelihood, of_bytes: bool = True) -> Tensor:
    """Levels as a model sees them: bits as they are, 0..255 in [-1, 1] for a mixture and in [0, 1] for a Gaussian."""
    if likelihood == "logistic_mixture":
        return levels / 127.5 - 1
    return levels / 255 if likelihood == "gaussian" and of_bytes else levels


def binarise_once(grey: Pixels, split: str) -> Pixels:
    """x ~ Bernoulli(grey / 255) with the split's seed: the same bits in every run and on every machine."""
    # NumPy promises never to change the streams of RandomState (NEP 19); torch's may change with a release.
    random = np.random.RandomState(SEEDS[split])
    draws = random.randint(0, 255, size=tuple(grey.shape), dtype=np.uint8)
    return torch.from_numpy((draws < grey.numpy()).astype(np.uint8))


def shuffled(size: int, seed: int = 0) -> Indices:
    """A permutation of 0..size-1, the same for ever (see `binarise_once`)."""
    return torch.from_numpy(np.random.RandomState(seed).permutation(size).astype(np.int64))


def subset(size: int, limit: int | None, seed: int = 0) -> Indices:
    """Sorted indices of `limit` images drawn without replacement: the first rows of a split may be of one class.

    Choose it wherever some images of a split are wanted: the same ones in every run.

    >>> len(subset(10_000, limit=100))
    100
    """
    if limit is not None and limit < 1:
        raise UsageError(f"a subset needs at least 1 image, not {limit}")
    if limit is None or limit >= size:
        return torch.arange(size, dtype=torch.int64, device="cpu")
    return shuffled(size, seed)[:limit].sort().values


def grey_dataset(name: str, train: Pixels, validation: Pixels, test: Pixels, labels: dict[str, Tensor]) -> Dataset:
    """A dynamic data set from grey splits: validation and test are binarised once."""
    return Dataset(
        name=name,
        image_shape=(train.shape[1], train.shape[2], train.shape[3]),
        likelihood="bernoulli",
        train=train,
        validation=binarise_once(validation, "validation"),
        test=binarise_once(test, "test"),
        dynamic=True,
        labels=labels,
    )
