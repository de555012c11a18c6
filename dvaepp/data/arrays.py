"""NumPy's files, read without trust: no pickles, and an array's size is checked before its memory is taken.

A header of a hundred bytes may declare a petabyte, and a member of an `.npz` may unpack to one.
"""

import math
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
from numpy.lib import format as npy

from dvaepp.data.formats import Array
from dvaepp.data.packed import SIP, Sips, sips, too_large
from dvaepp.errors import UsageError

ARRAY_LIMIT = 2**30  # bytes: 1.3 million images of 28x28; conversions hold a few copies
FILE_LIMIT = 2**32  # an .npz may hold other arrays too
HEADERS = {(1, 0): npy.read_array_header_1_0, (2, 0): npy.read_array_header_2_0}


def read(path: Path) -> Array:
    """The array of numbers in an `.npy` or `.npz` file; ValueError and the errors of zipfile where there is none."""
    with path.open("rb") as file:
        is_zip = file.read(2) == b"PK"
        file.seek(0)
        return _from_zip(file, path) if is_zip else _array(Sips(file, FILE_LIMIT), path)


def _from_zip(file: Any, path: Path) -> Array:
    with zipfile.ZipFile(sips(file, FILE_LIMIT)) as archive:
        names = {name.removesuffix(".npy"): name for name in archive.namelist()}
        info = archive.getinfo(names[_only(list(names), path)])
        # bz2 and lzma unpack a chunk without a limit, and numpy writes neither
        if info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
            raise ValueError(f"{info.filename} is packed by a method that numpy does not use")
        with archive.open(info) as member:
            return _array(Sips(member, ARRAY_LIMIT + SIP), path)


def _only(keys: list[str], path: Path) -> str:
    if "images" in keys:
        return "images"
    if len(keys) != 1:
        some = ", ".join(keys[:10])
        raise UsageError(f"{path} holds {len(keys)} arrays ({some}); name the wanted one 'images'")
    return keys[0]


def _array(stream: Sips, path: Path) -> Array:
    version = _version(stream)
    if version not in HEADERS:
        raise ValueError(f"its format has version {version}; expected 1.0 or 2.0")
    shape, by_columns, dtype = HEADERS[version](stream)
    if dtype.hasobject:
        raise ValueError("it holds pickled objects, which could run code")
    if dtype.kind not in "biuf":
        raise UsageError(f"{path} holds values of type {dtype}; expected bytes, or numbers in [0, 1]")
    size = math.prod(shape) * dtype.itemsize
    if min(shape, default=0) < 0:
        raise ValueError(f"its header declares the shape {shape}")
    if size > ARRAY_LIMIT:
        raise too_large(ARRAY_LIMIT)
    flat = _filled(stream, size).view(dtype)
    return flat.reshape(shape[::-1]).T if by_columns else flat.reshape(shape)


def _version(stream: Sips) -> tuple[int, int]:
    magic = stream.read(npy.MAGIC_LEN)
    if magic[:-2] != npy.MAGIC_PREFIX or len(magic) != npy.MAGIC_LEN:
        raise ValueError("it is no .npy or .npz file; pickled objects are not read")
    return magic[-2], magic[-1]


def _filled(stream: Sips, size: int) -> Array:
    content = np.empty(size, np.uint8)  # not backed by memory until it is filled
    place = 0
    while place < size:
        piece = stream.read(min(SIP, size - place))
        if not piece:
            raise EOFError(f"it ends after {place} of {size} bytes")
        content[place : place + len(piece)] = np.frombuffer(piece, np.uint8)
        place += len(piece)
    return content
