"""A folder of image files, read without trust: formats that run no program, and sizes checked before they are unpacked.

Files differ in size and in kind, so that each is brought to one size, and to grey or colour, as soon as it is read.
"""

import hashlib
import io
import warnings
from collections import Counter
from pathlib import Path
from typing import NamedTuple

import numpy as np

from dvaepp.data import arrays
from dvaepp.data.base import DataError
from dvaepp.data.formats import Array
from dvaepp.data.packed import too_large
from dvaepp.data.reading import Size
from dvaepp.data.store import reason
from dvaepp.errors import UsageError

SUFFIXES = {".bmp", ".gif", ".jpeg", ".jpg", ".pbm", ".pgm", ".png", ".ppm", ".tif", ".tiff", ".webp"}
FORMATS = ("BMP", "GIF", "JPEG", "PNG", "PPM", "TIFF", "WEBP")  # of all that Pillow knows EPS would run Ghostscript
DEEP = {"F", "I", "I;16", "I;16B", "I;16L", "I;16N"}  # Pillow clips these at 255 instead of scaling them
GREY = {"1", "L", "LA", "La"}
IMAGE_FILE_LIMIT = 64 * 2**20  # bytes
PIXEL_LIMIT = 2**22  # of one image: 2048 x 2048
RESIZED_LIMIT = 2**25  # of one image that is made smaller at once: photographs have 12 to 24 million


class Folder(NamedTuple):
    """Images (n, height, width, channels) of bytes, the digests of their files, and in words what the files were."""

    images: Array
    digests: list[str]
    colour: int  # how many of the files are in colour
    sizes: str  # the size or sizes of the files


def image_files(path: Path) -> list[Path]:
    """The image files in a folder and the folders below it, in the order of their names."""
    return sorted(file for file in path.rglob("*") if file.suffix.lower() in SUFFIXES and file.is_file())


def read(path: Path, grey: bool, size: Size | None) -> Folder:
    """The images of a folder, all grey or else in the colours they have, and all of `size` where one is given."""
    files = image_files(path)
    if not files:
        raise UsageError(f"{path} holds no images ({', '.join(sorted(SUFFIXES))}) and no IDX or array file")
    images: list[Array] = []
    digests: list[str] = []
    found: Counter[Size] = Counter()
    colour = 0
    for file in files:
        content = _content(file)
        picture = _decoded(content, file, grey, size)
        colour += picture.colour
        found[picture.size] += 1
        images.append(picture.pixels)
        digests.append(hashlib.sha256(content).hexdigest())
        _same_size(files, images, file)
        _within(path, len(files), picture.pixels)
    return Folder(_stacked(images), digests, colour, _sizes(found))


class _Picture(NamedTuple):
    pixels: Array  # (height, width, channels)
    colour: bool  # of the file
    size: Size  # of the file


def _same_size(files: list[Path], images: list[Array], file: Path) -> None:
    if images[-1].shape[:2] != images[0].shape[:2]:
        first, this = (Size(*image.shape[:2]) for image in (images[0], images[-1]))
        raise UsageError(
            f"images differ in size: {files[0]} is {first}, {file} is {this} (height x width); "
            "bring them to one size with data.resize=32, or data.resize=32x48"
        )


def _within(path: Path, number: int, image: Array) -> None:
    if number * image.size > arrays.ARRAY_LIMIT:
        most = arrays.ARRAY_LIMIT // image.size
        raise UsageError(
            f"{path} holds {number} images of {Size(*image.shape[:2])}; give at most {most}, or make them smaller with "
            "data.resize"
        )


def _stacked(images: list[Array]) -> Array:
    """One array; where some images are in colour the grey ones get three equal channels."""
    channels = max(image.shape[2] for image in images)
    stacked = np.empty((len(images), *images[0].shape[:2], channels), np.uint8)
    for place, image in enumerate(images):
        stacked[place] = image
    return stacked


def _sizes(found: Counter[Size]) -> str:
    if len(found) == 1:
        return str(next(iter(found)))
    by_area = sorted(found, key=lambda size: size.height * size.width)
    return f"{by_area[0]} to {by_area[-1]}"


def _content(file: Path) -> bytes:
    with file.open("rb") as opened:
        content = opened.read(IMAGE_FILE_LIMIT + 1)
    if len(content) > IMAGE_FILE_LIMIT:
        raise DataError(f"{file} cannot be read: {too_large(IMAGE_FILE_LIMIT)}; resize or remove it")
    return content


def _decoded(content: bytes, file: Path, grey: bool, size: Size | None) -> _Picture:
    from PIL import Image, ImageOps, UnidentifiedImageError

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # such as warnings of damaged metadata
            warnings.simplefilter("error", Image.DecompressionBombWarning)
            with Image.open(io.BytesIO(content), formats=FORMATS) as image:
                _check(image.width * image.height, image.mode, size)
                upright = ImageOps.exif_transpose(image)  # cameras note a turn instead of turning the pixels
                colour = upright.mode not in GREY
                picture = upright.convert("L" if grey or not colour else "RGB")
                shape = Size(picture.height, picture.width)
                if size is not None and shape != size:
                    picture = ImageOps.fit(picture, (size.width, size.height), Image.Resampling.BICUBIC)
                return _Picture(np.atleast_3d(np.asarray(picture)), colour, shape)
    except Exception as error:  # decoders fail in many ways on damaged files
        why = "no image of a known format" if isinstance(error, UnidentifiedImageError) else reason(error)
        raise DataError(f"{file} cannot be read: {why}; replace or remove it") from None


def _check(pixels: int, mode: str, size: Size | None) -> None:
    limit = PIXEL_LIMIT if size is None else RESIZED_LIMIT
    if pixels > limit:
        remedy = "resize it, or give data.resize" if size is None else "resize it"
        raise ValueError(f"its {pixels} pixels are more than {limit}; {remedy}")
    if mode in DEEP:
        raise ValueError(f"more than 8 bits per pixel (mode {mode}); convert it to 8-bit grey")
