"""An index on disk: an .npz file of plain arrays, laid out so that its codes can be memory-mapped.

    codes    (n, words) uint64, packed bits
    labels   (n,) int64, where the images had labels
    about    JSON as bytes: format, version, num_bits, the model's digest, where the images came from, and a sha256

Members are stored without compression, and each begins at a multiple of 64 bytes. A reader trusts nothing: sizes must
agree with the file before memory is taken, and the sha256 covers everything that a search depends on.
"""

import hashlib
import io
import json
import math
import zipfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from numpy.lib import format as npy

from dvaepp.codes.hamming import HammingIndex
from dvaepp.codes.packing import num_words
from dvaepp.errors import UsageError
from dvaepp.files import write_durably

VERSION = 1
ALIGNMENT = 64  # bytes: a cache line
LOCAL_HEADER = 30  # bytes of a zip member's header before its name
ABOUT_LIMIT = 2**16  # bytes


@dataclass(frozen=True, eq=False)
class IndexFile:
    """An index with what belongs to it: labels, the digest of the model that made the codes, the images' origin."""

    index: HammingIndex
    labels: npt.NDArray[np.int64] | None = None
    model: str = ""
    source: dict[str, Any] = field(default_factory=dict)


def write(path: Path, content: IndexFile) -> None:
    codes = np.ascontiguousarray(content.index.words, "<u8")
    arrays: dict[str, npt.NDArray[Any]] = {"codes": codes}
    if content.labels is not None:
        if len(content.labels) != len(codes):
            raise UsageError(f"an index of {len(codes)} codes needs as many labels, got {len(content.labels)}")
        arrays["labels"] = np.ascontiguousarray(content.labels, "<i8")
    about = {
        "format": "dvaepp index",
        "version": VERSION,
        "num_bits": content.index.num_bits,
        "model": content.model,
        "source": content.source,
    }
    about["sha256"] = _digest(about, arrays)
    arrays["about"] = np.frombuffer(json.dumps(about).encode(), np.uint8)
    write_durably(path, _zipped(arrays))


def read(path: Path, *, memory_map: bool = False) -> IndexFile:
    """The index in a file; OSError with one line where it is damaged, UsageError where it is none."""
    if not path.is_file():
        raise UsageError(f"{path} is no file; dvaepp index makes one")
    try:
        return _read(path, memory_map)
    except PermissionError:
        raise
    except Exception as error:  # zipfile, json and numpy fail in many ways on damaged files
        reason = " ".join(str(error).split())[:200]
        raise OSError(f"{path} cannot be read as an index: {reason}; make it anew with dvaepp index") from None


def _read(path: Path, memory_map: bool) -> IndexFile:
    with path.open("rb") as file, zipfile.ZipFile(file) as archive:
        about = json.loads(bytes(_array(archive, "about", "|u1", limit=ABOUT_LIMIT)))
        if not isinstance(about, dict) or about.get("format") != "dvaepp index":
            raise ValueError("it is not marked as one")
        if about.get("version") != VERSION:
            raise ValueError(f"it has version {str(about.get('version'))[:20]}, and this program reads {VERSION}")
        mapped = path if memory_map else None
        arrays = {"codes": _array(archive, "codes", "<u8", mapped)}
        if "labels.npy" in archive.namelist():
            arrays["labels"] = _array(archive, "labels", "<i8")
    if _digest(about, arrays) != about["sha256"]:
        raise ValueError("its contents do not have the checksum that was noted")
    index, codes = HammingIndex(about["num_bits"]), arrays["codes"]
    if codes.ndim != 2 or codes.shape[1] != num_words(index.num_bits):
        raise ValueError(f"codes of {index.num_bits} bits cannot have the shape {codes.shape}")
    index.add_words(codes.view(np.uint64))
    return IndexFile(index, arrays.get("labels"), str(about["model"]), dict(about["source"]))


def _digest(about: dict[str, Any], arrays: dict[str, npt.NDArray[Any]]) -> str:
    plain = {key: value for key, value in about.items() if key != "sha256"}
    digest = hashlib.sha256(json.dumps(plain, sort_keys=True).encode())
    for name in sorted(arrays):
        digest.update(f"{name}{arrays[name].shape}".encode())
        digest.update(arrays[name].data)
    return digest.hexdigest()


def _zipped(arrays: dict[str, npt.NDArray[Any]]) -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_STORED) as archive:
        for name, array in arrays.items():
            info = zipfile.ZipInfo(f"{name}.npy")  # the fixed date of 1980: equal contents make equal files
            before = out.tell() + LOCAL_HEADER + len(info.filename) + 4
            info.extra = b"\0\0" + (filler := -before % ALIGNMENT).to_bytes(2, "little") + bytes(filler)
            content = io.BytesIO()
            npy.write_array(content, array, version=(1, 0), allow_pickle=False)
            archive.writestr(info, content.getvalue())
    return out.getvalue()


def _array(
    archive: zipfile.ZipFile, name: str, dtype: str, mapped: Path | None = None, limit: int | None = None
) -> npt.NDArray[Any]:
    """A stored member of the type given; its header must agree with its size, which zipfile checked for the file."""
    info = archive.getinfo(f"{name}.npy")
    if info.compress_type != zipfile.ZIP_STORED or info.compress_size != info.file_size:
        raise ValueError(f"its {name} are compressed")
    if info.file_size > (limit or info.file_size):
        raise ValueError(f"its {name} take {info.file_size} bytes; expected at most {limit}")
    with archive.open(info) as member:
        if npy.read_magic(member) != (1, 0):
            raise ValueError(f"its {name} have an unknown header")
        shape, by_columns, found = npy.read_array_header_1_0(member)
        start = member.tell()
        if found != np.dtype(dtype) or by_columns or min(shape, default=0) < 0:
            raise ValueError(f"its {name} are of type {found}; expected {dtype} in rows")
        if math.prod(shape) * found.itemsize != info.file_size - start:
            raise ValueError(f"its {name} have another size than their header says")
        if mapped is None or not math.prod(shape):
            return np.frombuffer(member.read(), found).reshape(shape)
    return np.memmap(mapped, found, "r", _data_offset(archive, info) + start, shape)


def _data_offset(archive: zipfile.ZipFile, info: zipfile.ZipInfo) -> int:
    """Where a stored member's bytes begin in the file: after its local header, its name and the filler."""
    assert archive.fp is not None
    archive.fp.seek(info.header_offset)
    header = archive.fp.read(LOCAL_HEADER)
    return (
        info.header_offset
        + LOCAL_HEADER
        + int.from_bytes(header[26:28], "little")
        + int.from_bytes(header[28:30], "little")
    )
