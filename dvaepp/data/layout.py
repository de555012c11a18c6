"""Which axis of an array is which: every array of images is seen as (n, height, width, channels), without a copy."""

import math

from dvaepp.data.formats import Array
from dvaepp.errors import UsageError

CHANNELS = (1, 3)
SHAPES = "(n, height, width), (n, 1 or 3, height, width), (n, height, width, 1 or 3), or (n, side * side) when square"
MAX_IMAGES = 10**7  # their order takes 80 MB; a file full of holes may announce any number


def as_images(array: Array, where: str, flat: bool = False) -> Array:
    """A view of an array as images, or a refusal that names its shape; `flat` takes rows that are no square as well."""
    if len(array.shape) > 0 and array.shape[0] > MAX_IMAGES:
        raise UsageError(f"{where} holds {array.shape[0]} images; expected at most {MAX_IMAGES}: give a part of them")
    if array.size == 0:
        raise UsageError(f"{where} holds no pixels: its shape is {array.shape}")
    if array.ndim == 2:
        return _rows(array, where, flat)
    if array.ndim == 3:
        return array[..., None]
    if array.ndim == 4:
        return _with_channels(array, where)
    hint = "; one image alone is image[None]" if array.ndim < 2 else ""
    raise UsageError(f"{where} has shape {array.shape}; expected {SHAPES}{hint}")


def _rows(array: Array, where: str, flat: bool) -> Array:
    side = math.isqrt(array.shape[1])
    if side * side == array.shape[1]:
        return array.reshape(-1, side, side, 1)
    if flat:
        return array.reshape(len(array), 1, -1, 1)
    raise UsageError(f"{where} has shape {array.shape}; expected {SHAPES}")


def _with_channels(array: Array, where: str) -> Array:
    first, last = array.shape[1] in CHANNELS, array.shape[3] in CHANNELS
    if first and last and array.shape[1] != array.shape[3]:
        raise UsageError(
            f"{where} has shape {array.shape}, whose channels may be the second or the last axis; "
            "give grey images as (n, height, width)"
        )
    if first:
        return array.transpose(0, 2, 3, 1)
    if last:
        return array
    hint = "; leave out the fourth channel, which is transparency" if 4 in (array.shape[1], array.shape[3]) else ""
    raise UsageError(f"{where} has shape {array.shape}; expected {SHAPES}{hint}")
