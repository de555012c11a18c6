"""Files: whole or not at all, and a remedy that fits the failure."""

import errno
import os
from pathlib import Path

import pytest

from dvaepp.files import append_durably, write_durably


def _raise(number: int) -> None:
    raise OSError(number, os.strerror(number))


@pytest.mark.parametrize(
    "number, remedy",
    [
        (errno.EACCES, "make the folder writable"),
        (errno.EPERM, "make the folder writable"),
        (errno.ENOSPC, "free some space"),
        (errno.EFBIG, "free some space"),
        (errno.EDQUOT, "free some space"),
        (errno.EIO, "check the disk"),
        (errno.EROFS, "choose another path"),
    ],
)
def test_the_remedy_is_that_of_the_failure(
    number: int, remedy: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "fsync", lambda descriptor: _raise(number))
    for write in (write_durably, append_durably):
        with pytest.raises(OSError, match=rf"cannot write .*x \(3 bytes\): .*; {remedy}") as found:
            write(tmp_path / "x", b"abc")
        assert found.value.errno == number


def test_only_a_folder_that_is_closed_to_us_is_to_be_made_writable(tmp_path: Path) -> None:
    """A folder of that name, a file for a folder, a name that is too long: none of them is a matter of rights."""
    (tmp_path / "folder").mkdir()
    (tmp_path / "file").write_text("")
    for path in (tmp_path / "folder", tmp_path / "file" / "x", tmp_path / ("x" * 300)):
        with pytest.raises(OSError) as found:
            write_durably(path, b"abc")
        assert "writable" not in str(found.value) and "choose another path" in str(found.value)
        assert str(path) in str(found.value)


@pytest.mark.skipif(os.geteuid() != 0, reason="dropping rights needs root")
def test_a_folder_that_is_closed_to_us_is_told_as_such(tmp_path: Path) -> None:
    """As a user who owns nothing: root may write anywhere."""
    (tmp_path / "closed").mkdir(mode=0o555)
    for parent in (tmp_path, *tmp_path.parents[:3]):
        parent.chmod(0o755)
    os.seteuid(65534)
    try:
        with pytest.raises(OSError, match="Permission denied; make the folder writable, then try again"):
            write_durably(tmp_path / "closed" / "x", b"abc")
    finally:
        os.seteuid(0)


def test_what_is_added_to_a_file_is_there_whole_or_not_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "lines"
    append_durably(path, b"one\n")
    append_durably(path, b"two\n")
    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", lambda descriptor: _raise(errno.ENOSPC))
        with pytest.raises(OSError, match="free some space"):
            append_durably(path, b"three\n")
    assert path.read_bytes() == b"one\ntwo\n"
