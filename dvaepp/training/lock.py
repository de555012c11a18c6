"""A lock that lets only one process train in a run directory.

The operating system holds the lock and drops it when its owner ends, even by kill -9, so that no stale lock is left.
"""

import json
import os
import socket
import stat
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from filelock import FileLock, Timeout


class RunInUse(OSError):
    """Another process trains in this run directory."""


@contextmanager
def owned(folder: Path) -> Iterator[None]:
    """Hold the lock of a run directory, or raise RunInUse with the name of its owner."""
    lock = _acquired(folder)
    try:
        yield
    finally:
        lock.release()


def _acquired(folder: Path) -> FileLock:
    owner = folder / ".owner.json"
    path = folder / ".lock"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        path.touch()  # made here, because a FileLock would ignore the user's umask in the file that it makes
        lock = FileLock(path, mode=stat.S_IMODE(path.stat().st_mode))
        lock.acquire(timeout=0)
        me = {"process": os.getpid(), "host": socket.gethostname(), "since": time.strftime("%Y-%m-%d %H:%M:%S")}
        owner.write_text(json.dumps(me) + "\n")
    except Timeout:
        raise RunInUse(
            f"{folder} is in use by {_name(owner)}; wait for it, stop it, or choose another --run-dir"
        ) from None
    except OSError as error:
        raise OSError(error.errno, f"cannot write into {folder}: {error.strerror}; choose another --run-dir") from None
    return lock


def _name(owner: Path) -> str:
    try:
        found = json.loads(owner.read_text())
        return f"process {found['process']} on {found['host']} since {found['since']}"
    except (OSError, ValueError, KeyError, TypeError):
        return "another process"
