"""MATLAB 5 files: named matrices of numbers, and nothing else that such a file may hold.

A file is 128 bytes of header, then elements: a type, a size and so many bytes, or packed by zlib the same again. A
matrix is an element of elements: flags with its class, sizes, name, values column by column in the smallest type that
holds them, in which they are returned. Cells, structures, functions and objects are passed over, unread.
"""

import struct
import zlib
from collections.abc import Iterator

import numpy as np

from dvaepp.data.formats import Array
from dvaepp.data.packed import too_large

HEADER = 128
MATRICES_LIMIT = 512 * 2**20  # bytes unpacked; OMNIGLOT's, as doubles, have 200 MB
MATRIX, PACKED = 14, 15
STORED = {1: "i1", 2: "u1", 3: "i2", 4: "u2", 5: "i4", 6: "u4", 7: "f4", 9: "f8", 12: "i8", 13: "u8"}
NUMBERS = range(6, 16)  # classes, from double to uint64
COMPLEX = 0x800


def matrices(content: bytes, wanted: list[str]) -> dict[str, Array]:
    """The wanted matrices of a little-endian file."""
    if content[124:HEADER] != b"\0\1IM":
        raise ValueError("it is no MATLAB 5 file")
    found: dict[str, Array] = {}
    left = MATRICES_LIMIT
    for kind, element in _elements(content[HEADER:], padded=False):
        if kind == PACKED:
            element = _unpacked(element, left)
            left -= len(element)
            kind, element = next(_elements(element), (0, b""))
        if kind == MATRIX:
            name, matrix = _matrix(element, wanted)
            if matrix is not None:
                found[name] = matrix
    if missing := [name for name in wanted if name not in found]:
        raise ValueError(f"it lacks a matrix of numbers called {', '.join(missing)}")
    return found


def _elements(content: bytes, padded: bool = True) -> Iterator[tuple[int, bytes]]:
    """Type and bytes of the elements side by side; inside a matrix they start at multiples of 8."""
    place = 0
    while place + 8 <= len(content):
        kind, size = struct.unpack_from("<II", content, place)
        if kind >> 16:  # a small one: size and type in four bytes, the data in the next four
            kind, size, start, place = kind & 0xFFFF, kind >> 16, place + 4, place + 8
        else:
            start = place + 8
            place = start + (-(-size // 8) * 8 if padded else size)
        if start + size > len(content) or (start + size > place):
            raise ValueError(f"it ends inside an element of {size} bytes")
        yield kind, content[start : start + size]


def _unpacked(element: bytes, limit: int) -> bytes:
    unpacker = zlib.decompressobj()
    content = unpacker.decompress(element, limit + 1)
    if len(content) > limit:
        raise too_large(MATRICES_LIMIT)
    if not unpacker.eof:
        raise EOFError("a packed matrix ends too early")
    return content


def _matrix(element: bytes, wanted: list[str]) -> tuple[str, Array | None]:
    parts = _elements(element)
    (_, flags), (_, sizes), (_, name) = [next(parts, (0, b"")) for _ in range(3)]
    text = name.decode("ascii", "replace")
    (flag,) = struct.unpack_from("<I", flags.ljust(4, b"\0"))
    if text not in wanted or flag & 0xFF not in NUMBERS or flag & COMPLEX:
        return text, None
    kind, values = next(parts, (0, b""))
    if kind not in STORED:
        raise ValueError(f"the values of {text} have no type of numbers")
    flat = np.frombuffer(values, f"<{STORED[kind]}")
    # unsigned, so that no size is -1, which would mean "whatever is left"
    shape = [int(n) for n in np.frombuffer(sizes, "<u4")]
    return text, flat.reshape(shape, order="F")
