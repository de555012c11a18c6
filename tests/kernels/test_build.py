"""Compiling and loading: nothing that was damaged, and nothing that somebody else could have put there."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from dvaepp.kernels import build

SOURCE = "int dvaepp_answer(void) { return 42; }\n"

pytestmark = pytest.mark.skipif(build.find_compiler() is None, reason="no C compiler here")


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv("DVAEPP_KERNEL", raising=False)
    return tmp_path / "cache" / "dvaepp" / "kernels"


def _source(tmp_path: Path) -> Path:
    source = tmp_path / "answer.c"
    source.write_text(SOURCE)
    return source


def test_a_file_is_compiled_once_and_loaded(tmp_path: Path, cache: Path) -> None:
    compiler = build.find_compiler()
    assert compiler is not None
    first = build._build(compiler, _source(tmp_path))
    changed = first.stat().st_mtime_ns
    assert build._build(compiler, _source(tmp_path)) == first and first.stat().st_mtime_ns == changed
    found = build.library(_source(tmp_path))
    assert found is not None and found.dvaepp_answer() == 42


@pytest.mark.parametrize("damage", ["truncated", "changed", "no digest", "another digest"])
def test_a_damaged_file_is_built_again_instead_of_loaded(damage: str, tmp_path: Path, cache: Path) -> None:
    """In a process of its own: loading a truncated file would end it by SIGBUS."""
    compiler = build.find_compiler()
    assert compiler is not None
    built = build._build(compiler, _source(tmp_path))
    note = built.with_name(f"{built.name}.sha256")
    whole = built.read_bytes()
    if damage == "truncated":
        built.write_bytes(whole[: len(whole) // 2])
    elif damage == "changed":
        built.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    elif damage == "no digest":
        note.unlink()
    else:
        note.write_text("0" * 64)
    code = (
        "from pathlib import Path; from dvaepp.kernels.build import library;"
        f"print(library(Path({str(tmp_path / 'answer.c')!r})).dvaepp_answer())"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0 and done.stdout == "42\n", done.stderr
    assert note.read_text() == build._digest(built)


def test_a_cache_that_others_can_write_is_refused(cache: Path) -> None:
    cache.mkdir(parents=True)
    cache.chmod(0o777)
    with pytest.raises(OSError, match="can be written by others; chmod 700"):
        build.cache_folder()


@pytest.mark.parametrize("mode", [0o777, 0o775])
def test_a_folder_above_the_cache_that_others_can_change_is_refused(mode: int, tmp_path: Path, cache: Path) -> None:
    """Whoever may rename a folder above may put another one, with code of his own, in its place."""
    cache.mkdir(parents=True, mode=0o700)
    (tmp_path / "cache").chmod(mode)
    with pytest.raises(OSError, match="can be changed by others; set XDG_CACHE_HOME"):
        build.cache_folder()
    (tmp_path / "cache").chmod(mode | 0o1000)  # sticky, as /tmp is: nobody renames what is another's
    assert build.cache_folder() == cache


@pytest.mark.skipif(not hasattr(os, "chown") or os.getuid() != 0, reason="only root can give a folder away")
def test_a_folder_of_somebody_else_above_the_cache_is_refused(tmp_path: Path, cache: Path) -> None:
    cache.mkdir(parents=True, mode=0o700)
    os.chown(tmp_path / "cache", 12345, -1)
    with pytest.raises(OSError, match="can be changed by others"):
        build.cache_folder()


@pytest.mark.parametrize("environment", [{"PATH": "/nonexistent", "CC": "nosuch"}, {"CC": "false"}])
def test_what_cannot_be_compiled_is_said_in_one_line_once(environment: dict[str, str], tmp_path: Path) -> None:
    code = (
        "import torch; from dvaepp.priors import RBM; from dvaepp.samplers import gibbs\n"
        "for _ in range(3): gibbs(RBM(3, 3), torch.zeros(4, 6), 2)"
    )
    variables = {**os.environ, "DVAEPP_KERNEL": "on", **environment, "XDG_CACHE_HOME": str(tmp_path)}
    done = subprocess.run([sys.executable, "-c", code], env=variables, capture_output=True, text=True)
    assert done.returncode == 0
    assert done.stderr.count("\n") == 1 and "plain torch takes its place" in done.stderr
    quiet = subprocess.run(
        [sys.executable, "-c", code], env={**variables, "DVAEPP_KERNEL": "off"}, capture_output=True, text=True
    )
    assert quiet.returncode == 0 and quiet.stderr == ""
