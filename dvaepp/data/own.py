"""Images of one's own: a folder of image files, an `.npy` or `.npz` array, or IDX files.

With the Bernoulli likelihood images are grey: those of two values stay as they are, others are binarised as those of
MNIST are. With the logistic mixture they keep their 256 levels and their colours. A folder with the four files of MNIST
brings its own test set; everything else is split 80/10/10 with a fixed seed. What is too large for memory is refused by
its header, before it is unpacked, or mapped where it lies plainly in its file.
"""

import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from torch import Tensor

from dvaepp.data import arrays, folder, idx
from dvaepp.data.base import DataError, Dataset, Seen, binarise_once, seen
from dvaepp.data.formats import Array, class_numbers
from dvaepp.data.layout import as_images
from dvaepp.data.parts import Options, Part, dataset, whole
from dvaepp.data.store import permitted, reason
from dvaepp.errors import UsageError

IDX = ("train-images-idx3-ubyte", "train-labels-idx1-ubyte", "t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte")


class _Found(NamedTuple):
    """What lies at a path: images, a test set where it has one of its own, and the digests of the files."""

    images: Part
    test: Part | None
    digests: list[str]


def load(path: Path, name: str, options: Options) -> Dataset:
    """Read the images at `path` as a data set called `name`; its `summary` says what was read and how."""
    found = _read(path, options)
    checksum = hashlib.sha256("".join(found.digests).encode()).hexdigest()
    return dataset(found.images, options, name, checksum, test=0.1 if found.test is None else found.test)


def read_images(path: Path, options: Options) -> Seen:
    """All images at `path` in their order, as a model sees them; grey ones are binarised once with a fixed seed."""
    images = whole(_read(path, options).images, options)
    grey = options.likelihood == "bernoulli" and not images.binary
    return seen((binarise_once(images.pixels, "test") if grey else images.pixels).float(), options.likelihood)


def read_binary(path: Path) -> Seen:
    """All images at `path` in their order, where they have two values; grey ones are refused, as they would change."""
    images = whole(_read(path, Options()).images, Options())
    if not images.binary:
        raise UsageError(f"{path} holds grey images or ones in colour, which would change; binarise them first")
    return images.pixels.float()


def _read(path: Path, options: Options) -> _Found:
    with permitted():
        if path.is_dir():
            return _idx_folder(path) or _image_folder(path, options)
        if path.suffix in (".npy", ".npz") and path.is_file():
            return _array(path, arrays.read, "write it anew with numpy.save or numpy.savez")
        if path.is_file() and idx.is_idx(path):
            return _array(path, idx.read, "get it again")
        if not path.exists():
            raise UsageError(f"there is no file or folder {path}")
    raise UsageError(f"{path} is neither a folder of images nor an .npy, .npz or IDX file")


def _array(path: Path, read: Callable[[Path], Array], remedy: str) -> _Found:
    return _Found(Part(as_images(_numbers(path, read, remedy), str(path)), str(path)), None, [_digest(path)])


def _numbers(path: Path, read: Callable[[Path], Array], remedy: str) -> Array:
    try:
        return read(path)
    except (PermissionError, UsageError):
        raise
    except Exception as error:  # numpy, gzip, zipfile and zlib fail in many ways on damaged files
        raise DataError(f"{path} cannot be read as an array of numbers: {reason(error)}; {remedy}") from None


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _image_folder(path: Path, options: Options) -> _Found:
    read = folder.read(path, options.likelihood == "bernoulli", options.resize)
    part = Part(read.images, str(path), colour=read.colour, sizes=read.sizes, eight_bit=True)
    return _Found(part, None, read.digests)


def _idx_folder(path: Path) -> _Found | None:
    """The files of MNIST by their usual names, packed or plain; labels may be missing, and so may the test set."""
    files = [
        next((path / f"{name}{end}" for end in ("", ".gz") if (path / f"{name}{end}").is_file()), None) for name in IDX
    ]
    if files[0] is None:
        return None
    numbers = [None if file is None else _numbers(file, idx.read, "get it again") for file in files]
    train, test = (_labelled(numbers[i], numbers[i + 1], files[i]) for i in (0, 2))
    assert train is not None
    return _Found(train, test, [_digest(file) for file in files if file is not None])


def _labelled(images: Array | None, labels: Array | None, file: Path | None) -> Part | None:
    if images is None:
        return None
    if labels is not None and labels.shape != images.shape[:1]:
        raise DataError(
            f"{file} holds {len(images)} images, and its labels have the shape {labels.shape}; get them again"
        )
    numbers: Tensor | None = None if labels is None else class_numbers(labels)
    return Part(as_images(images, str(file)), str(file), labels=numbers)
