"""Archives of binary images: what `dvaepp compress` writes.

    magic "dvaeppz" and the version    8 bytes
    digest of the model                16 bytes: sha256 over all of its integers, cut
    images, channels, height, width    4 x uint32
    state of the coder                 uint64
    words of the coder                 uint32 each
    checksum                           16 bytes: sha256 over everything before, cut

All numbers are little-endian. A reader checks, in this order, the checksum, the version, the model and the size, and at
the end that the coder is back where it began; only then does it return images.
"""

import hashlib
import math
import struct
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from dvaepp.codes.ans import LOW, BitStack, Exhausted
from dvaepp.codes.bits_back import IntegerModel, Pixels, pop_image, push_image
from dvaepp.errors import UsageError

MAGIC = b"dvaeppz"
VERSION = 1
HEADER = struct.Struct("<7sB16s4IQ")
CHECKSUM = 16
MOST_PIXELS = 2**30  # of all images together: a header of a few bytes may announce any number


class Archive(NamedTuple):
    """The bytes of an archive, and the net bits that each image added, in the order of coding: the last image first."""

    data: bytes
    bits: list[float]


class Damaged(OSError):
    """An archive that was cut, altered, or is none."""


def compress(model: IntegerModel, images: Pixels, advance: Callable[[int], None] = lambda n: None) -> Archive:
    """Code images (n, channels, height, width) of 0 and 1, the last first, so that they come out in order."""
    if images.ndim != 4 or images.shape[1:] != model.image_shape:
        raise UsageError(f"images must have shape (n, {_of(model.image_shape)}), got {images.shape}")
    if images.size > MOST_PIXELS:
        raise UsageError(f"an archive takes at most {MOST_PIXELS} pixels, got {images.size}: make several archives")
    if not ((images == 0) | (images == 1)).all():
        raise UsageError("images must be of zeros and ones: what is grey would not come back; binarise them first")
    stack, bits = BitStack(), []
    for image in images.reshape(len(images), math.prod(model.image_shape))[::-1].astype(np.int64):
        before = stack.bits
        push_image(stack, model, image)
        bits.append(stack.bits - before)
        advance(1)
    return Archive(_packed(model, images.shape, stack), bits)


class Coded(NamedTuple):
    """An archive that was read and found whole: the shape of all its images, and the coder that yields them."""

    model: IntegerModel
    shape: tuple[int, ...]
    stack: BitStack


def decompress(model: IntegerModel, data: bytes) -> Pixels:
    """The images of an archive, bit for bit; Damaged or UsageError where they cannot be had."""
    return decoded(read(model, data))


def decoded(coded: Coded, advance: Callable[[int], None] = lambda n: None) -> Pixels:
    """The images; their coder is spent afterwards."""
    images = []
    try:
        for _ in range(coded.shape[0]):
            images.append(pop_image(coded.stack, coded.model).astype(np.uint8))
            advance(1)
    except Exhausted as error:
        raise Damaged(f"the archive is damaged: {error}") from None
    if not coded.stack.is_back_at_start():
        raise Damaged("the archive is damaged: its coder does not end where it began")
    return np.array(images, np.uint8).reshape(coded.shape)


def _packed(model: IntegerModel, shape: tuple[int, ...], stack: BitStack) -> bytes:
    header = HEADER.pack(MAGIC, VERSION, model.digest()[:16], *shape, stack.state)
    content = header + np.array(stack.words, "<u4").tobytes()
    return content + _checksum(content)


def read(model: IntegerModel, data: bytes) -> Coded:
    """Check an archive before anything is made of it."""
    content, checksum = data[:-CHECKSUM], data[-CHECKSUM:]
    if not data.startswith(MAGIC):
        raise Damaged("it is no archive of dvaepp compress")
    if len(content) < HEADER.size or (len(content) - HEADER.size) % 4 or _checksum(content) != checksum:
        raise Damaged("the archive is damaged: it does not have its checksum; get it anew")
    _, version, digest, *shape, state = HEADER.unpack_from(content)
    if version != VERSION:
        raise Damaged(f"the archive has version {version}, and this program reads {VERSION}; use the newer one")
    if digest != model.digest()[:16]:
        raise UsageError(
            f"the archive was made with another model, {digest.hex()[:12]}, than this one, {model.digest().hex()[:12]}"
        )
    if tuple(shape[1:]) != model.image_shape or math.prod(shape) > MOST_PIXELS or state < LOW:
        raise Damaged(f"the archive is damaged: it announces images of shape {tuple(shape)}")
    words = np.frombuffer(content, "<u4", offset=HEADER.size).tolist()
    return Coded(model, tuple(shape), BitStack(state, words, lend=False))


def _checksum(content: bytes) -> bytes:
    return hashlib.sha256(content).digest()[:CHECKSUM]


def _of(shape: tuple[int, ...]) -> str:
    return ", ".join(map(str, shape))
