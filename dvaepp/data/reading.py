"""How the numbers of an array become the bytes of images, by rules that are stated and never guessed.

An array has one `white`, the number that means the lightest level. It is 1 for floats and for whole numbers that are
all 0 or 1, and 255 for whole numbers that reach at least 128. Anything else is unclear: 16 may be white, as in 4-bit
scans, or dark grey. Such an array is refused until the caller says which number is white.
"""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from dvaepp.data.formats import Array
from dvaepp.errors import UsageError

CHUNK = 2**24  # bytes of an array that are looked at or converted at a time
LARGEST = 1024  # pixels of a side that images may be brought to
HALF = 128  # whole numbers that stay below it are not taken for 0..255
LUMA = (19595, 38470, 7471)  # 65536 times the weights 0.299, 0.587, 0.114 of ITU-R 601, which Pillow uses as well


class Size(NamedTuple):
    """Height and width in pixels."""

    height: int
    width: int

    def __str__(self) -> str:
        return f"{self.height}x{self.width}"


class Range(NamedTuple):
    """The smallest and largest number of an array, and its smallest number above 0 (infinity without one)."""

    low: float
    high: float
    faintest: float


class Reading(NamedTuple):
    """What is done to images (n, height, width, channels): numbers become levels, colour becomes grey, sizes change."""

    white: float
    binary: bool = False  # two values, which become 0 and 1
    grey: bool = False  # three channels become one
    size: Size | None = None
    numbers: bool = False  # nothing is done, and nothing becomes a byte

    def __call__(self, images: Array) -> Array:
        """The images as uint8 (n, channels, height, width), or as float32 where they are kept as numbers."""
        images = np.asarray(images)
        if self.numbers:
            return np.ascontiguousarray(images.transpose(0, 3, 1, 2), dtype=np.float32)
        levels = self._levels(images)
        if self.grey and levels.shape[-1] == 3:
            levels = luma(levels)
        if self.size is not None and levels.shape[1:3] != tuple(self.size):
            levels = np.stack([resized(image, self.size) for image in levels])
        return np.ascontiguousarray(levels.transpose(0, 3, 1, 2))

    @property
    def dtype(self) -> type:
        return np.float32 if self.numbers else np.uint8

    def shape(self, images: Array) -> tuple[int, int, int]:
        """Channels, height and width of what `images` become."""
        height, width = self.size or images.shape[1:3]
        return (1 if self.grey else images.shape[3], height, width)

    def _levels(self, images: Array) -> Array:
        if self.binary:
            return (images != 0).astype(np.uint8)
        if images.dtype == np.uint8 and self.white == 255:
            return images
        return np.rint(images * (255.0 / self.white)).astype(np.uint8)


def reading(
    parts: list[Array], where: str, white: float | None, eight_bit: bool, grey: bool, size: Size | None
) -> Reading:
    """One reading for all `parts`, images (n, height, width, channels); `grey` asks for one channel, binary if it is.

    `eight_bit` images come from a format that says that 255 is white.
    """
    found = extent(parts)
    level = _white(found, parts[0].dtype, where, white, eight_bit)
    two_values = found.faintest in (level, np.inf)
    unchanged = size is None or tuple(size) == parts[0].shape[1:3]
    return Reading(level, grey and two_values and parts[0].shape[3] == 1 and unchanged, grey, size)


def as_numbers(parts: list[Array], where: str, size: Size | None) -> Reading:
    """The reading that keeps numbers as they are, which must be finite."""
    found = extent(parts)
    if size is not None:
        raise UsageError(f"{where} holds numbers that are kept as they are, which cannot be resized: leave resize out")
    if not np.isfinite([found.low, found.high]).all():
        raise UsageError(f"{where} holds numbers from {found.low:g} to {found.high:g}; remove what is not finite")
    return Reading(1.0, numbers=True)


def as_size(given: int | str | tuple[int, int] | None) -> Size | None:
    """A size from a number of pixels for both sides, "HEIGHTxWIDTH", or height and width."""
    if given is None or isinstance(given, Size):
        return given
    sides = str(given).split("x") if isinstance(given, int | str) else [str(side) for side in given]
    if not (1 <= len(sides) <= 2 and all(side.isascii() and side.isdigit() and len(side) < 5 for side in sides)):
        raise UsageError(
            f"resize is a number of pixels such as 32, or HEIGHTxWIDTH such as 32x48, not {str(given)[:40]!r}"
        )
    size = Size(int(sides[0]), int(sides[-1]))
    if not (1 <= min(size) and max(size) <= LARGEST):
        raise UsageError(f"resize takes sides of 1 to {LARGEST} pixels, got {size}")
    return size


def extent(parts: list[Array]) -> Range:
    """The range of arrays, looked at piece by piece: an array may be a map of a large file."""
    low, high, faintest = np.inf, -np.inf, np.inf
    for piece in (np.asarray(images[place]) for images in parts for place in pieces(images)):
        low, high = np.minimum(low, piece.min()), np.maximum(high, piece.max())  # both keep a NaN
        above = piece[piece > 0]
        faintest = min(faintest, above.min()) if above.size else faintest
    return Range(float(low), float(high), float(faintest))


def pieces(images: Array) -> Iterator[slice]:
    """Slices over the first axis of at most `CHUNK` bytes, or of one image where it is larger."""
    each = max(1, CHUNK // max(1, images[:1].nbytes))
    return (slice(start, start + each) for start in range(0, len(images), each))


def luma(images: Array) -> Array:
    """Grey images from red, green and blue bytes on the last axis, to the bit as Pillow makes them."""
    weighted = (images.astype(np.uint32) * np.array(LUMA, np.uint32)).sum(-1, keepdims=True, dtype=np.uint32)
    return ((weighted + 2**15) >> 16).astype(np.uint8)


def resized(image: Array, size: Size) -> Array:
    """An image (height, width, channels) of bytes scaled to cover `size`, with what juts out cut off on both sides."""
    from PIL import Image, ImageOps

    picture = Image.fromarray(image[..., 0] if image.shape[-1] == 1 else image)
    fitted = ImageOps.fit(picture, (size.width, size.height), Image.Resampling.BICUBIC)
    return np.asarray(fitted).reshape(size.height, size.width, image.shape[-1])


def _white(found: Range, dtype: "np.dtype[np.generic]", where: str, given: float | None, eight_bit: bool) -> float:
    whole = dtype.kind in "iu"
    numbers = f"{where} holds values from {found.low:g} to {found.high:g}"
    most = given if given is not None else 255 if whole else 1
    if not (found.low >= 0 and found.high <= most):  # also refuses NaN
        raise UsageError(f"{numbers}; expected {dtype} in [0, {most:g}]: {_remedy(found, whole)}")
    if given is not None:
        return float(given)
    if whole and 1 < found.high < HALF and not eight_bit:
        raise UsageError(
            f"{numbers}, and {found.high:g} may be white or dark grey: say which number is white with "
            f"white={found.high:g} or white=255 (in a recipe data.white)"
        )
    return 255.0 if whole and found.high > 1 else 1.0


def _remedy(found: Range, whole: bool) -> str:
    if not np.isfinite([found.low, found.high]).all():
        return "remove what is not a number"
    if found.low < 0:
        return (
            "(x + 1) / 2 makes them of numbers from -1 to 1"
            if found.low >= -1 and not whole
            else "shift and scale them"
        )
    if found.high <= 255 and not whole:
        return "divide by 255, or say that 255 is white with white=255 (in a recipe data.white)"
    return f"scale them, or say which number is white with white={found.high:g} (in a recipe data.white)"
