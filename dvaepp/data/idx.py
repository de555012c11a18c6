"""IDX files, the format of MNIST: 00 00 <type> <axes>, one big-endian int32 per axis, then the numbers.

Files ending in .gz are unpacked. A header may announce any size: what it declares is checked before memory is taken,
and a large file that is not packed is mapped rather than read.
"""

import gzip
import io
import math
from pathlib import Path
from typing import Any

import numpy as np

from dvaepp.data import arrays
from dvaepp.data.formats import Array
from dvaepp.data.packed import SIP, Sips

TYPES = {0x08: ">u1", 0x09: ">i1", 0x0B: ">i2", 0x0C: ">i4", 0x0D: ">f4", 0x0E: ">f8"}
AXES = 4  # images in colour have as many; labels have one


def is_idx(path: Path) -> bool:
    """Whether a file says that it is one: by its name, and by its first bytes."""
    if path.suffix not in (".gz", ".idx", "") and "-ubyte" not in path.name:
        return False
    with path.open("rb") as file:
        try:
            start = gzip.GzipFile(fileobj=file).read(3) if path.suffix == ".gz" else file.read(3)
        except (OSError, EOFError):
            return False
    return start[:2] == b"\0\0" and start[2:] in [bytes([kind]) for kind in TYPES]


def read(path: Path) -> Array:
    """The numbers in an IDX file; ValueError, EOFError and the errors of gzip where there are none."""
    with path.open("rb") as file:
        if path.suffix == ".gz":
            with gzip.GzipFile(fileobj=file) as unpacked:
                return _array(unpacked, None)
        return _array(file, path)


def parse(content: bytes) -> Array:
    """The numbers in the contents of an IDX file."""
    return _array(io.BytesIO(content), None)


def _array(file: Any, path: Path | None) -> Array:
    stream = Sips(file, arrays.FILE_LIMIT if path is not None else arrays.ARRAY_LIMIT + SIP)
    start = stream.read(4)
    if len(start) < 4 or start[:2] != b"\0\0" or start[2] not in TYPES:
        raise ValueError(f"no idx file: it starts with {start!r}")
    if not 1 <= start[3] <= AXES:
        raise ValueError(f"its header declares {start[3]} axes; expected 1 to {AXES}")
    sizes = stream.read(4 * start[3])
    if len(sizes) < 4 * start[3]:
        raise EOFError("it ends inside its header")
    shape = tuple(int(n) for n in np.frombuffer(sizes, ">u4"))
    dtype = np.dtype(TYPES[start[2]])
    header = arrays.Header(shape, dtype, False, 4 + len(sizes))
    found = arrays.content(stream, header, path)
    if path is None and stream.read(1):
        raise ValueError(f"it goes on after the {math.prod(shape)} numbers that its header declares")
    return found
