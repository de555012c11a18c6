"""Files that are written whole or not at all, also across a power cut; and what is refused as a path."""

import errno
import io
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from dvaepp.errors import UsageError

REMEDIES = {
    errno.ENOSPC: "free some space, then try again",
    errno.EFBIG: "free some space, then try again",
    errno.EDQUOT: "free some space, then try again",
    errno.EACCES: "make the folder writable, then try again",
    errno.EPERM: "make the folder writable, then try again",
    errno.EIO: "check the disk, then try again",
}
LONGEST_PATH = 1000  # letters; systems differ, and some take 1024 bytes
OTHERWISE = "choose another path"  # a file where a folder should be, a folder of this name, a name that is too long


def expanded(path: Path | str) -> Path:
    """The path with a leading ~ resolved."""
    if "\0" in str(path) or len(str(path)) > LONGEST_PATH:
        raise UsageError(f"a path has no zero byte and at most {LONGEST_PATH} letters, not {str(path)[:40]!r} ...")
    try:
        return Path(path).expanduser()
    except RuntimeError:
        raise UsageError(f"{path}: there is no such user; write the folder in full") from None


def write_durably(path: Path, data: bytes) -> None:
    """Write beside `path`, flush to disk, rename: a failure leaves whatever was there before.

    What is there and is no ordinary file, such as /dev/stdout, is written to and never replaced.
    """
    partial = path.with_name(f".{path.name}.{os.getpid()}.partial")
    with _told(path, len(data)):
        if path.exists() and not path.is_file() and not path.is_dir():
            path.write_bytes(data)
            return
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            with open(partial, "wb") as file:  # created under the user's umask
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            partial.replace(path)
            sync(path.parent)
        finally:
            remove(partial)


def write_arrays(path: Path, **arrays: Any) -> None:
    """NumPy arrays as a compressed .npz, under whatever name, written like everything else here."""
    import numpy as np

    contents = io.BytesIO()
    np.savez_compressed(contents, **arrays)
    write_durably(path, contents.getvalue())


@contextmanager
def appearing(folder: Path) -> Iterator[Path]:
    """A new folder that is filled under another name, and appears whole or not at all."""
    partial = folder.with_name(f".{folder.name}.{os.getpid()}.partial")
    try:
        partial.mkdir(parents=True)
        yield partial
        partial.rename(folder)
        sync(folder.parent)
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def append_durably(path: Path, data: bytes) -> None:
    """Add to the end of a file and flush it to disk; a failure takes back what was added.

    Two processes may do so at a time: each addition is one write at whatever the end then is.
    """
    with _told(path, len(data)), open(path, "ab", buffering=0) as file:
        before = os.fstat(file.fileno()).st_size
        try:
            if file.write(data) != len(data):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            os.fsync(file.fileno())
        except OSError:
            os.ftruncate(file.fileno(), before)
            raise


@contextmanager
def _told(path: Path, size: int) -> Iterator[None]:
    """Name the file, its size and what to do about a failure to write it."""
    try:
        yield
    except OSError as error:
        remedy = REMEDIES.get(error.errno or 0, OTHERWISE)
        raise OSError(error.errno, f"cannot write {path} ({size} bytes): {error.strerror}; {remedy}") from None


def remove(path: Path) -> None:
    try:
        path.unlink(missing_ok=True)
    except OSError:  # what cannot be removed does no harm
        pass


def sync(path: Path) -> None:
    """Flush a file or a folder to disk."""
    if os.name != "posix" and path.is_dir():  # elsewhere a folder cannot be opened
        return
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
