"""The real files, where the checkout's neighbour has them, and a look-up that sees nothing else."""

import functools
import os
from pathlib import Path

import pytest

from dvaepp.data import Dataset, load

REAL = Path(os.environ.get("DVAEPP_DATA") or Path(__file__).parents[3] / "shared" / "data")


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No test reads the user's folders or writes into the user's cache."""
    monkeypatch.delenv("DVAEPP_DATA", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "home"))


@pytest.fixture
def real() -> Path:
    if not (REAL / "mnist").is_dir():
        pytest.skip(f"the real data files are not in {REAL}; set DVAEPP_DATA")
    return REAL


@functools.cache
def loaded(name: str) -> Dataset:
    """Each data set is read once for all tests."""
    return load(name, REAL)
