"""What hostile tests share: a payload that sings when it is unpickled, and a watch over what is written."""

import os
import resource
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from dvaepp.data import DataError
from dvaepp.errors import UsageError

MEBIBYTE = 2**20


class Canary:
    """Creates a file when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return (Path.touch, (self.path,))


def tree(root: Path) -> dict[str, tuple[int, int]]:
    """Every file, folder and link below a folder, the cache left out, with size and time of change."""
    cache = root / "home"
    paths = [path for path in root.rglob("*") if cache not in (path, *path.parents)]
    return {str(path): (path.lstat().st_size, path.lstat().st_mtime_ns) for path in paths}


def peak_memory() -> int:
    """Bytes of memory this process has held at most."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def memory() -> int:
    """Bytes of memory this process holds, where the system tells."""
    pages = Path("/proc/self/statm")
    return int(pages.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") if pages.exists() else 0


@contextmanager
def harmless(root: Path, canary: Path, mebibytes: int = 200) -> Iterator[None]:
    """Nothing below `root` changes but the cache, the canary stays silent, and memory stays near where it was."""
    before, held = tree(root), max(memory(), peak_memory())
    yield
    assert not canary.exists()
    assert tree(root) == before
    assert peak_memory() - held < mebibytes * MEBIBYTE


@contextmanager
def refused(*parts: str) -> Iterator[None]:
    """The error is one of ours, and one line that holds these parts."""
    with pytest.raises((DataError, UsageError)) as caught:
        yield
    message = str(caught.value)
    assert "\n" not in message and len(message) < 1500
    for part in parts:
        assert part in message
