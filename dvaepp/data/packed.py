"""Reads packed files: never more bytes than a limit, whatever a header says, and nothing is written to disk.

A kilobyte of gzip, xz or zip may unpack to a gigabyte, and a header may announce any size: readers here stop.
"""

import gzip
import lzma
import tarfile
from functools import partial
from pathlib import Path
from typing import Any

CONTENT_LIMIT = 128 * 2**20  # bytes of one file of a data set, unpacked; static MNIST's largest has 78 MB
ARCHIVE_LIMIT = 512 * 2**20  # bytes of a whole archive, unpacked; CIFAR10's has 184 MB
MAX_MEMBERS = 1000  # each costs memory, even an empty one
SIP = 2**20  # bytes that a header may ask for at once


class Sips:
    """A stream read in sips of at most a mebibyte, up to `limit`: a header that asks for more is refused."""

    def __init__(self, stream: Any, limit: int) -> None:
        self._stream, self._limit = stream, limit

    def read(self, size: int = -1) -> bytes:
        if size > SIP:
            raise ValueError(f"a header asks for {size} bytes at once; expected at most {SIP}")
        data: bytes = self._stream.read(SIP if size < 0 else size)
        self._within(self._stream.tell())
        return data

    def seek(self, offset: int, whence: int = 0) -> int:
        if whence == 0:
            self._within(offset)
        return int(self._stream.seek(offset, whence))

    def tell(self) -> int:
        return int(self._stream.tell())

    def seekable(self) -> bool:
        return True

    def _within(self, place: int) -> None:
        if place > self._limit:
            raise too_large(self._limit)


def sips(stream: Any, limit: int) -> Any:
    """`Sips` in place of a file: tarfile and zipfile only read, seek and tell."""
    return Sips(stream, limit)


def too_large(limit: int) -> ValueError:
    return ValueError(f"it holds more than {limit} bytes")


def unpacked(path: Path) -> bytes:
    """The content of a file, decompressed where its name ends in .gz or .xz."""
    with path.open("rb") as file:
        if path.suffix == ".gz":
            with gzip.open(file) as packed:
                content = packed.read(CONTENT_LIMIT + 1)
        elif path.suffix == ".xz":
            content = _unxz(file.read(CONTENT_LIMIT))
        else:
            content = file.read(CONTENT_LIMIT + 1)
    if len(content) > CONTENT_LIMIT:
        raise too_large(CONTENT_LIMIT)
    return content


def _unxz(packed: bytes) -> bytes:
    # memlimit: a header may ask for a dictionary of 4 GiB
    unpacker = lzma.LZMADecompressor(lzma.FORMAT_XZ, memlimit=CONTENT_LIMIT)
    content = unpacker.decompress(packed, CONTENT_LIMIT + 1)
    if not unpacker.eof and len(content) <= CONTENT_LIMIT:
        raise EOFError("it ends before its end mark")
    return content


def members(path: Path, wanted: set[str]) -> dict[str, bytes]:
    """Named regular files of a tar.gz archive, in one pass."""
    found: dict[str, bytes] = {}
    with gzip.open(path) as stream, tarfile.open(fileobj=sips(stream, ARCHIVE_LIMIT), mode="r:") as archive:
        for number, info in enumerate(archive):
            if number == MAX_MEMBERS:
                raise ValueError(f"it has more than {MAX_MEMBERS} members")
            if info.name not in wanted:
                continue
            file = archive.extractfile(info) if info.isreg() and not info.issparse() else None
            if file is None or info.size > CONTENT_LIMIT:
                raise ValueError(f"{info.name} is no regular file of at most {CONTENT_LIMIT} bytes")
            found[info.name] = b"".join(iter(partial(file.read, SIP), b""))
            if len(found) == len(wanted):
                return found
    raise ValueError(f"it lacks {', '.join(sorted(wanted - set(found)))}")
