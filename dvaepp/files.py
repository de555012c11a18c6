"""Files that are written whole or not at all, also across a power cut."""

import errno
import os
from pathlib import Path


def write_durably(path: Path, data: bytes) -> None:
    """Write beside `path`, flush to disk, rename: a failure leaves whatever was there before."""
    partial = path.with_name(f".{path.name}.{os.getpid()}.partial")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with open(partial, "wb") as file:  # created under the user's umask
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        partial.replace(path)
        sync(path.parent)
    except OSError as error:
        full = error.errno in (errno.ENOSPC, errno.EFBIG, errno.EDQUOT)
        remedy = "free some space" if full else "make the folder writable"
        raise OSError(
            error.errno, f"cannot write {path} ({len(data)} bytes): {error.strerror}; {remedy}, then try again"
        ) from None
    finally:
        remove(partial)


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
