"""Whatever holds images, as a data set: tensors, NumPy arrays, torch Datasets, paths and names."""

import hashlib
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, IterableDataset
from torch.utils.data import Dataset as TorchDataset

from dvaepp.data import arrays
from dvaepp.data.base import Dataset, Likelihood
from dvaepp.data.formats import Array
from dvaepp.data.layout import as_images
from dvaepp.data.parts import Options, Part, dataset
from dvaepp.data.reading import pieces
from dvaepp.errors import UsageError
from dvaepp.files import expanded

if TYPE_CHECKING:
    Source = Tensor | Array | TorchDataset[Any] | Dataset | Path | str
else:
    Source = Any  # anything else is refused below with a remedy, which a check of types would forestall
TAKEN = "a tensor, a NumPy array, a torch Dataset, or the path of a folder, an .npy, .npz or IDX file"


def as_dataset(
    data: Source,
    *,
    likelihood: Likelihood = "bernoulli",
    resize: int | str | tuple[int, int] | None = None,
    white: float | int | None = None,
    validation: Source | float | int = 0.1,
    test: Source | float | int = 0.1,
    name: str | None = None,
) -> Dataset:
    """A data set from whatever holds the images.

    Choose it to train on data of your own, in memory or in files; `load` takes the data sets of the library.

    `data` is a tensor or an array (n, height, width), (n, channels, height, width), (n, height, width, channels) or
    (n, numbers); a torch Dataset whose items are images, alone or before a label; a path; or the name of a data set of
    the library. Rows of numbers reach the model as rows, everything else as (channels, height, width). Floats run from
    0 to 1 and whole numbers from 0 to 255; `white` names another number for the lightest level. `likelihood`
    "bernoulli" turns images to grey and binarises them in each batch, unless they are binary; "logistic_mixture" keeps
    256 levels and colours, which the model sees in [-1, 1]; "gaussian" keeps floats as they are, of any size.
    `validation` and `test` are shares of the images, drawn with a fixed seed, or images of their own.

    >>> as_dataset(torch.eye(50).reshape(50, 5, 10))
    Dataset('data', bernoulli, images (1, 5, 10), split 40/5/5)
    """
    if isinstance(data, Dataset):
        return data
    options = Options.of(likelihood, resize, white)
    if isinstance(data, str | Path):
        return _at(data, options, name)
    part = _part(data, "data")
    others = {
        split: each if isinstance(each, float | int) else _part(each, split)
        for split, each in (("validation", validation), ("test", test))
    }
    checksum = _checksum([part, *(each for each in others.values() if isinstance(each, Part))])
    return dataset(part, options, name or "data", checksum, others["validation"], others["test"])


def _at(path: Path | str, options: Options, name: str | None) -> Dataset:
    from dvaepp.data import load, names, own

    if isinstance(path, str) and path in names():
        return load(path)
    place = expanded(path).absolute()
    if not os.path.lexists(place):
        known = f", and no data set has this name: there are {', '.join(sorted(names()))}"
        raise UsageError(f"there is no file or folder {place}{known if isinstance(path, str) else ''}")
    return own.load(place, name or place.stem, options)


def _part(data: Any, where: str) -> Part:
    labels: Tensor | None = None
    if isinstance(data, TorchDataset):
        array, labels = _items(data, where)
    elif isinstance(data, Tensor):
        array = data.detach().cpu().numpy() if data.dtype != torch.bfloat16 else data.detach().cpu().float().numpy()
    elif isinstance(data, np.ndarray):
        array = data
    else:
        remedy = ": torch.stack or numpy.stack makes one of it" if isinstance(data, list | tuple) else ""
        remedy = ": give its .dataset" if isinstance(data, DataLoader) else remedy
        raise UsageError(f"{where} is a {type(data).__name__}; expected {TAKEN}{remedy}")
    if array.dtype.kind not in "biuf":
        raise UsageError(f"{where} holds values of type {array.dtype}; expected bytes, or numbers in [0, 1]")
    return Part(as_images(array, where, flat=True), where, labels, flat=array.ndim == 2)


def _items(data: "TorchDataset[Any]", where: str) -> tuple[Array, Tensor | None]:
    """The images of a torch Dataset, and its labels where every item is an image with a whole number."""
    if isinstance(data, IterableDataset) or not hasattr(data, "__len__"):
        raise UsageError(f"{where} is a torch Dataset without a length; give one that can be indexed, or a tensor")
    size = len(data)
    if size == 0:
        raise UsageError(f"{where} is a torch Dataset without items")
    images: Array | None = None
    labels: list[int] = []
    for place in range(size):
        image, label = _item(data[place])
        if images is None:
            _within(size, image, where)
            images = np.empty((size, *image.shape), image.dtype)
        if image.shape != images.shape[1:] or image.dtype != images.dtype:
            raise UsageError(
                f"item {place} of {where} is {image.dtype} {image.shape}, and the first {images.dtype} "
                f"{images.shape[1:]}; give all items one shape and type"
            )
        images[place] = image
        labels += [] if label is None else [label]
    assert images is not None
    return images, torch.tensor(labels, dtype=torch.int64, device="cpu") if len(labels) == size else None


def _item(item: Any) -> tuple[Array, int | None]:
    image, label = (*item, None)[:2] if isinstance(item, tuple | list) else (item, None)
    found = image.detach().cpu().numpy() if isinstance(image, Tensor) else np.asarray(image)
    whole = isinstance(label, int | np.integer) or (isinstance(label, Tensor) and label.numel() == 1)
    return found, int(label) if whole and label is not None else None


def _within(size: int, image: Array, where: str) -> None:
    if size * image.nbytes > arrays.ARRAY_LIMIT:
        most = arrays.ARRAY_LIMIT // max(1, image.nbytes)
        raise UsageError(
            f"{where} has {size} items of {image.shape} {image.dtype}; at most {most} are read into memory: "
            "write them to an .npy file, which is mapped"
        )


def _checksum(parts: list[Part]) -> str:
    """sha256 over shapes, types and numbers: a run that goes on with other data is noticed."""
    digest = hashlib.sha256()
    for part in parts:
        digest.update(f"{part.images.shape} {part.images.dtype}".encode())
        for place in pieces(part.images):
            digest.update(np.ascontiguousarray(part.images[place]).data)
    return digest.hexdigest()
