"""Images of one's own: a folder of image files, or an `.npy` / `.npz` array; split 80/10/10 with a fixed seed.

Images of two values stay as they are (0 and 1, or 0 and 255); grey ones are binarised as those of MNIST are. What is
too large for memory is refused by its header, before it is unpacked.
"""

import hashlib
import io
import math
import warnings
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch

from dvaepp.data import arrays
from dvaepp.data.base import DataError, Dataset, Pixels, Seen, binarise_once, grey_dataset, shuffled
from dvaepp.data.formats import Array
from dvaepp.data.packed import too_large
from dvaepp.data.store import permitted, reason
from dvaepp.errors import UsageError

SUFFIXES = {".bmp", ".gif", ".jpeg", ".jpg", ".pbm", ".pgm", ".png", ".ppm", ".tif", ".tiff", ".webp"}
FORMATS = ("BMP", "GIF", "JPEG", "PNG", "PPM", "TIFF", "WEBP")  # of all that Pillow knows EPS would run Ghostscript
DEEP = {"F", "I", "I;16", "I;16B", "I;16L", "I;16N"}  # Pillow clips these at 255 instead of scaling them
IMAGE_FILE_LIMIT = 64 * 2**20  # bytes
PIXEL_LIMIT = 2**22  # of one image: 2048 x 2048
MINIMUM = 10  # a split of 80/10/10 then leaves no part empty


class _Loaded(NamedTuple):
    images: Array  # (n, height, width)
    digests: list[str]


def load(path: Path, name: str) -> Dataset:
    """Read the images at `path` as a data set called `name`."""
    loaded = _read(path)
    images, binary = _bytes(loaded.images, path)
    if len(images) < MINIMUM:
        raise UsageError(f"{path} holds {len(images)} images; a split into three parts needs at least {MINIMUM}")
    return _split(images, binary, name, hashlib.sha256("".join(loaded.digests).encode()).hexdigest())


def read_images(path: Path) -> Seen:
    """All images at `path` in their order, as a model sees them; grey ones are binarised once with a fixed seed."""
    images, binary = _bytes(_read(path).images, path)
    return (images if binary else binarise_once(images, "test")).float()


def _read(path: Path) -> _Loaded:
    with permitted():
        if path.is_dir():
            return _folder(path)
        if path.suffix in (".npy", ".npz") and path.is_file():
            return _array(path)
    raise UsageError(f"{path} is neither a folder of images nor an .npy or .npz file")


def _split(images: Pixels, binary: bool, name: str, checksum: str) -> Dataset:
    size = len(images)
    tenth = size // 10
    train, validation, test = images[shuffled(size)].split([size - 2 * tenth, tenth, tenth])
    grey = grey_dataset(name, train, validation, test, labels={})
    if binary:
        return replace(grey, validation=validation, test=test, dynamic=False, checksum=checksum)
    return replace(grey, checksum=checksum)


def _bytes(images: Array, path: Path) -> tuple[Pixels, bool]:
    """Images as bytes, and whether they are binary (then 0 and 1)."""
    if images.size == 0:
        raise UsageError(f"{path} holds no pixels: shape {images.shape}")
    low, high = images.min(), images.max()
    limit = 1 if images.dtype.kind in "bf" else 255
    if not (low >= 0 and high <= limit):  # also refuses nan
        raise UsageError(f"{path} holds values from {low} to {high}; expected {images.dtype} in [0, {limit}]")
    one = high if high in (1, 255) else 1
    binary = all(bool(((image == 0) | (image == one)).all()) for image in images)  # one by one: no copy of them all
    scaled = images != 0 if binary else np.rint(images * 255.0) if limit == 1 else images
    return torch.from_numpy(np.array(scaled, dtype=np.uint8)).unsqueeze(1), binary


def _array(path: Path) -> _Loaded:
    try:
        loaded = arrays.read(path)
    except (PermissionError, UsageError):
        raise
    except Exception as error:  # numpy, zipfile and zlib fail in many ways on damaged files
        remedy = "write it anew with numpy.save or numpy.savez"
        raise DataError(f"{path} cannot be read as an array of numbers: {reason(error)}; {remedy}") from None
    with path.open("rb") as file:
        return _Loaded(_images(loaded, path), [hashlib.file_digest(file, "sha256").hexdigest()])


def _images(array: Array, path: Path) -> Array:
    if array.ndim == 2:
        side = math.isqrt(array.shape[1])
        if side * side == array.shape[1]:
            return array.reshape(-1, side, side)
    if array.ndim == 3:
        return array
    raise UsageError(f"{path} has shape {array.shape}; expected (n, height, width), or (n, side * side) when square")


def _folder(path: Path) -> _Loaded:
    files = sorted(file for file in path.rglob("*") if file.suffix.lower() in SUFFIXES and file.is_file())
    if not files:
        raise UsageError(f"{path} holds no images ({', '.join(sorted(SUFFIXES))})")
    images: list[Array] = []
    digests = []
    for file in files:
        content = _content(file)
        image = _grey(content, file)
        if images and image.shape != images[0].shape:
            raise UsageError(f"images differ in size: {files[0]} is {_size(images[0])}, {file} is {_size(image)}")
        if len(files) * image.size > arrays.ARRAY_LIMIT:
            most = arrays.ARRAY_LIMIT // image.size
            raise UsageError(
                f"{path} holds {len(files)} images of {_size(image)}; give at most {most}, or smaller ones"
            )
        images.append(image)
        digests.append(hashlib.sha256(content).hexdigest())
    return _Loaded(np.stack(images), digests)


def _content(file: Path) -> bytes:
    with file.open("rb") as opened:
        content = opened.read(IMAGE_FILE_LIMIT + 1)
    if len(content) > IMAGE_FILE_LIMIT:
        raise DataError(f"{file} cannot be read: {too_large(IMAGE_FILE_LIMIT)}; resize or remove it")
    return content


def _grey(content: bytes, file: Path) -> Array:
    from PIL import Image, UnidentifiedImageError

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of damaged metadata, which is not used
            warnings.simplefilter("error", Image.DecompressionBombWarning)
            with Image.open(io.BytesIO(content), formats=FORMATS) as image:
                if image.width * image.height > PIXEL_LIMIT:
                    raise ValueError(f"{image.width}x{image.height} are more than {PIXEL_LIMIT} pixels; resize it")
                if image.mode in DEEP:
                    raise ValueError(f"more than 8 bits per pixel (mode {image.mode}); convert it to 8-bit grey")
                return np.asarray(image.convert("L"))
    except Exception as error:  # decoders fail in many ways on damaged files
        why = "no image of a known format" if isinstance(error, UnidentifiedImageError) else reason(error)
        raise DataError(f"{file} cannot be read: {why}; replace or remove it") from None


def _size(image: Array) -> str:
    return f"{image.shape[1]}x{image.shape[0]}"
