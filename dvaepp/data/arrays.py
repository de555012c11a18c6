"""NumPy's files, read without trust: no pickles, and an array's size is checked before its memory is taken.

A header of a hundred bytes may declare a petabyte, and a member of an `.npz` may unpack to one. A large array that lies
plainly in its file is mapped rather than read: it takes no memory, and its size is that of the file.
"""

import math
import zipfile
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.lib import format as npy

from dvaepp.data.formats import Array
from dvaepp.data.packed import SIP, Sips, sips, too_large
from dvaepp.errors import UsageError

ARRAY_LIMIT = 2**30  # bytes: 1.3 million images of 28x28; conversions hold a few copies
FILE_LIMIT = 2**32  # an .npz may hold other arrays too
MAP_ABOVE = 2**28  # bytes of an array that is mapped where it can be
HEADERS = {(1, 0): npy.read_array_header_1_0, (2, 0): npy.read_array_header_2_0}


class Header(NamedTuple):
    """What a file says of its array; the numbers start at `offset`."""

    shape: tuple[int, ...]
    dtype: "np.dtype[Any]"
    by_columns: bool
    offset: int

    @property
    def size(self) -> int:
        return math.prod(self.shape) * self.dtype.itemsize


def read(path: Path) -> Array:
    """The array of numbers in an `.npy` or `.npz` file; ValueError and the errors of zipfile where there is none."""
    with path.open("rb") as file:
        is_zip = file.read(2) == b"PK"
        file.seek(0)
        return _from_zip(file, path) if is_zip else _array(Sips(file, FILE_LIMIT), path, path)


def content(stream: Sips, header: Header, plain: Path | None) -> Array:
    """The numbers after a header: mapped where the array is large and `plain` names the file that holds it unpacked."""
    if plain is not None and MAP_ABOVE < header.size <= plain.stat().st_size - header.offset:
        shape = header.shape[::-1] if header.by_columns else header.shape
        mapped: Array = np.memmap(plain, header.dtype, "r", header.offset, shape)
        return mapped.T if header.by_columns else mapped
    if header.size > ARRAY_LIMIT:
        raise too_large(ARRAY_LIMIT)
    flat = _filled(stream, header.size).view(header.dtype)
    return flat.reshape(header.shape[::-1]).T if header.by_columns else flat.reshape(header.shape)


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


def _array(stream: Sips, path: Path, plain: Path | None = None) -> Array:
    version = _version(stream)
    if version not in HEADERS:
        raise ValueError(f"its format has version {version}; expected 1.0 or 2.0")
    shape, by_columns, dtype = HEADERS[version](stream)
    if dtype.hasobject:
        raise ValueError("it holds pickled objects, which could run code")
    if dtype.kind not in "biuf":
        raise UsageError(f"{path} holds values of type {dtype}; expected bytes, or numbers in [0, 1]")
    if min(shape, default=0) < 0:
        raise ValueError(f"its header declares the shape {shape}")
    return content(stream, Header(shape, dtype, by_columns, stream.tell()), plain)


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
