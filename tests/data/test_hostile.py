"""Files made to do harm, through the public entry points: nothing runs, fills memory or is written elsewhere."""

import gzip
import io
import lzma
import os
import pickle
import struct
import tarfile
import zipfile
import zlib
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

import dvaepp
from dvaepp import cli, recipes, training
from dvaepp.data import cifar10, folder, load, matlab, packed
from dvaepp.data.base import File
from dvaepp.errors import UsageError
from tests.data.hostile import Canary, harmless, refused

WANTED = "cifar-10-batches-bin/data_batch_1.bin"


@pytest.fixture
def canary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The file a payload creates; unsafe loading is switched on wherever a variable can do so."""
    monkeypatch.setenv("TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD", "1")
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")
    return tmp_path / "canary"


def payload(canary: Path, form: str) -> bytes:
    """A file that runs code where it is unpickled."""
    buffer = io.BytesIO()
    objects = np.array([Canary(canary)] * 20, dtype=object)
    if form == "pkl":
        pickle.dump(Canary(canary), buffer)
    elif form == "old pt":
        torch.save({"model": Canary(canary)}, buffer, _use_new_zipfile_serialization=False)
    elif form == "pt":
        torch.save({"model": Canary(canary)}, buffer)
    elif form == "npy":
        np.save(buffer, objects, allow_pickle=True)
    elif form == "npz":
        np.savez(buffer, images=objects)
    return buffer.getvalue()


PAYLOADS = ["pkl", "old pt", "pt", "npy", "npz"]


@pytest.mark.parametrize("form", PAYLOADS)
def test_the_canary_sings_where_pickles_are_run(form: str, canary: Path) -> None:
    content = io.BytesIO(payload(canary, form))
    if "pt" in form:
        with pytest.warns(UserWarning, match="forcing weights_only=False"):
            torch.load(content)
    elif form == "npz":
        np.load(content, allow_pickle=True)["images"]
    else:
        np.load(content, allow_pickle=True)
    assert canary.exists()


@pytest.mark.parametrize("suffix", ["npy", "npz", "pt", "pkl", "png"])
@pytest.mark.parametrize("form", PAYLOADS)
def test_ones_own_file_is_never_unpickled(form: str, suffix: str, canary: Path, tmp_path: Path) -> None:
    path = tmp_path / "in" / f"evil.{suffix}"
    path.parent.mkdir()
    path.write_bytes(payload(canary, form))
    for given in (path, path.parent):
        with harmless(tmp_path, canary), refused(str(given)):
            load("own", path=given)


@pytest.mark.parametrize("verified", [True, False])
@pytest.mark.parametrize("form", PAYLOADS)
@pytest.mark.parametrize("name", ["mnist_dynamic", "mnist_static", "omniglot", "caltech", "cifar10", "demo"])
def test_a_data_file_is_never_unpickled(
    name: str, form: str, verified: bool, canary: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Under every name a data set looks for; checksums notice it, and so do the parsers where they do not."""
    files = _unverified(name, monkeypatch, "sha256:0" if verified and name != "demo" else "")
    for place in {form.path for file in files for form in file.forms}:
        path = tmp_path / "in" / place
        path.parent.mkdir(parents=True, exist_ok=True)
        content = payload(canary, form)
        packers = {".gz": gzip.compress, ".xz": lzma.compress}
        path.write_bytes(content if verified else packers.get(path.suffix, bytes)(content))
    with harmless(tmp_path, canary), refused(str(tmp_path / "in")):
        load(name, tmp_path / "in")


def _unverified(name: str, monkeypatch: pytest.MonkeyPatch, digest: str = "") -> list[File]:
    """Give the files of a data set another checksum; none switches verification off."""
    module = __import__(f"dvaepp.data.{name}", fromlist=["FILES"])
    files = [
        replace(file, digest=digest, others=tuple(replace(f, digest=digest) for f in file.others))
        for file in module.FILES
    ]
    monkeypatch.setattr(module, "FILES", files)
    return files


def _archive(members: list[tuple[tarfile.TarInfo, bytes]]) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz", compresslevel=1) as archive:
        for info, content in members:
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
    return buffer.getvalue()


def _member(name: str, kind: bytes = tarfile.REGTYPE, link: str = "") -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.type, info.linkname, info.mode = kind, link, 0o4777
    return info


def _greedy_header() -> bytes:
    """A pax header that says it has 8 GiB, and zeros to feed it."""
    info = _member("pax", tarfile.XHDTYPE)
    info.size = 2**33 - 1
    return gzip.compress(info.tobuf() + bytes(2 * packed.SIP))


TARS: dict[str, Callable[[Path], bytes]] = {
    "parent": lambda out: _archive([(_member(f"../{n}/evil"), b"x") for n in ("", "..", "in/..")]),
    "absolute": lambda out: _archive([(_member(str(out)), b"x")]),
    "symlink": lambda out: _archive([(_member(WANTED, tarfile.SYMTYPE, "/etc/passwd"), b"")]),
    "link and file through it": lambda out: _archive(
        [(_member("cifar-10-batches-bin", tarfile.SYMTYPE, str(out.parent)), b""), (_member(WANTED), b"x")]
    ),
    "hard link": lambda out: _archive([(_member(WANTED, tarfile.LNKTYPE, "/etc/passwd"), b"")]),
    "device": lambda out: _archive([(_member(WANTED, tarfile.CHRTYPE), b"")]),
    "fifo": lambda out: _archive([(_member(WANTED, tarfile.FIFOTYPE), b"")]),
    "folder": lambda out: _archive([(_member(WANTED, tarfile.DIRTYPE), b"")]),
    "bomb": lambda out: _archive([(_member(WANTED), bytes(packed.CONTENT_LIMIT + 1))]),
    "many members": lambda out: _archive([(_member(f"{n}"), b"") for n in range(packed.MAX_MEMBERS + 2)]),
    "many headers": lambda out: gzip.compress(_member("pax", tarfile.XHDTYPE).tobuf() * 5000),
    "greedy header": lambda out: _greedy_header(),
}


@pytest.mark.parametrize("kind", TARS)
def test_a_hostile_archive_is_refused_and_writes_nothing(
    kind: str, canary: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _unverified("cifar10", monkeypatch)
    path = tmp_path / "in" / "cifar-10-binary.tar.gz"
    path.parent.mkdir()
    path.write_bytes(TARS[kind](canary))
    with harmless(tmp_path, canary), refused(str(path), "`dvaepp data fetch cifar10`"):
        load("cifar10", path.parent)


def test_an_archive_is_not_unpacked_beyond_its_limit(
    canary: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nor when the bomb is not the member that is wanted."""
    _unverified("cifar10", monkeypatch)
    monkeypatch.setattr(packed, "ARCHIVE_LIMIT", 4 * packed.SIP)
    path = tmp_path / "cifar-10-binary.tar.gz"
    path.write_bytes(_archive([(_member("first"), bytes(5 * packed.SIP)), (_member(WANTED), b"x")]))
    with harmless(tmp_path, canary), refused("more than 4194304 bytes"):
        load("cifar10", tmp_path)


@pytest.mark.parametrize(
    ("name", "file"),
    [
        ("mnist_dynamic", "train-images-idx3-ubyte.gz"),
        ("cifar10", "data_batch_1.bin.xz"),
        ("demo", "mnist_5k.csv.gz"),
        ("mnist_dynamic", "train-images-idx3-ubyte"),
    ],
)
def test_a_packed_bomb_stops_at_the_limit(
    name: str, file: str, canary: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At 1/16 of the limit, so that the suite stays small."""
    files = _unverified(name, monkeypatch)
    monkeypatch.setattr(packed, "CONTENT_LIMIT", packed.CONTENT_LIMIT // 16)
    bomb = bytes(4 * packed.CONTENT_LIMIT)
    for each in files:
        (tmp_path / Path(each.path).name).write_bytes(b"")
    (tmp_path / file).write_bytes(
        gzip.compress(bomb, 1)
        if file.endswith(".gz")
        else lzma.compress(bomb, preset=0)
        if file.endswith(".xz")
        else bomb
    )
    if file == "train-images-idx3-ubyte":
        (tmp_path / f"{file}.gz").unlink()
    with harmless(tmp_path, canary, mebibytes=64), refused("more than 8388608 bytes"):
        load(name, tmp_path)


def test_a_dictionary_of_4_gibibytes_is_refused(tmp_path: Path) -> None:
    filters = [{"id": lzma.FILTER_LZMA2, "preset": 0}]
    content = bytearray(lzma.compress(b"x", format=lzma.FORMAT_XZ, filters=filters))
    content[16] = 40  # the dictionary's size in the block header (liblzma's largest), whose checksum comes after
    content[20:24] = struct.pack("<I", zlib.crc32(content[12:20]))
    (tmp_path / "a.xz").write_bytes(content)
    with pytest.raises(lzma.LZMAError, match="Memory usage limit"):
        packed.unpacked(tmp_path / "a.xz")


def _matlab(kind: int, size: int, values: bytes, declared: int | None = None) -> bytes:
    """A file of one packed matrix `data` of class `kind` with `size` rows; `declared` bytes of values are announced."""
    parts = struct.pack("<IIII", 6, 8, kind, 0) + struct.pack("<IIII", 5, 8, size, 1)
    parts += struct.pack("<HH4s", 1, 4, b"data") + struct.pack("<II", 2, declared or len(values)) + values
    matrix = zlib.compress(struct.pack("<II", 14, len(parts)) + parts, 1)
    return b"MATLAB 5.0".ljust(124) + b"\0\1IM" + struct.pack("<II", 15, len(matrix)) + matrix


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (_matlab(17, 1, b"\0" * 8), "lacks a matrix of numbers called data"),  # opaque
        (_matlab(16, 1, b"\0" * 8), "lacks a matrix of numbers called data"),  # function
        (_matlab(3, 1, b"\0" * 8), "lacks a matrix of numbers called data"),  # object
        (_matlab(1, 2**31, b"\0" * 8), "lacks a matrix of numbers called data"),  # cells
        (_matlab(9, 2**32 - 1, b"\0" * 8), "cannot reshape"),
        (_matlab(9, 8, b"\0" * 8, declared=2**32 - 1), "ends inside an element"),
        (_matlab(9, 2**25, bytes(2**25)), "more than 16777216 bytes"),
    ],
)
def test_matlab_files_hold_numbers_or_nothing(
    content: bytes, reason: str, canary: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _unverified("omniglot", monkeypatch)
    monkeypatch.setattr(matlab, "MATRICES_LIMIT", 2**24)
    (tmp_path / "chardata.mat").write_bytes(content)
    with harmless(tmp_path, canary, mebibytes=64), refused("chardata.mat", reason):
        load("omniglot", tmp_path)


def _header(shape: str, descr: str = "|u1", version: int = 1, length: int | None = None) -> bytes:
    text = f"{{'descr': {descr!r}, 'fortran_order': False, 'shape': {shape}}}".encode()
    size = struct.pack("<H" if version == 1 else "<I", length or len(text))
    return b"\x93NUMPY" + bytes([version, 0]) + size + text


def _zip(content: bytes, name: str = "images.npy", method: int = zipfile.ZIP_DEFLATED) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", method) as archive:
        archive.writestr(name, content)
    return buffer.getvalue()


ARRAYS: dict[str, Callable[[], bytes]] = {
    "a petabyte": lambda: _header("(1024, 1048576, 1048576)"),
    "a product that overflows": lambda: _header("(4294967296, 4294967296, 1)"),
    "a negative size": lambda: _header("(-4, -4, 4)") + bytes(64),
    "a negative and a large size": lambda: _header("(-1, 1048576, 1048576)") + bytes(64),
    "a long header": lambda: _header("(1,)", version=2, length=2**32 - 1),
    "parentheses": lambda: _header("(" * 9000),
    "minus signs": lambda: _header("-" * 9000 + "1"),
    "a shape that is code": lambda: _header("__import__('os').getpid()"),
    "records": lambda: _header("(10,)", "[('a', '|O')]"),
    "a type of no size": lambda: _header("(1099511627776, 3, 3)", "<U0"),
    "version 9": lambda: _header("(1,)", version=9),
    "a zipped petabyte": lambda: _zip(_header("(1024, 1048576, 1048576)")),
    "a zip bomb": lambda: _zip(_header("(40, 1024, 1024)", version=2, length=2**30) + bytes(2**26)),
    "a zip bomb by bz2": lambda: _zip(_header("(10, 2, 2)") + bytes(40), method=zipfile.ZIP_BZIP2),
    "a zip bomb by lzma": lambda: _zip(_header("(10, 2, 2)") + bytes(40), method=zipfile.ZIP_LZMA),
    "a parent": lambda: _zip(b"x", "../../evil.npy"),
    "an absolute name": lambda: _zip(b"x", "/tmp/evil.npy"),
    "a folder": lambda: _zip(b"", "images/"),
    "a greedy directory": lambda: _zip(b"")[:-10] + struct.pack("<IIH", 2**31, 0, 0),
    "nothing but a magic": lambda: b"PK\5\6" + bytes(18),
}


@pytest.mark.parametrize("kind", ARRAYS)
@pytest.mark.parametrize("suffix", ["npy", "npz"])
def test_a_hostile_array_is_refused(kind: str, suffix: str, canary: Path, tmp_path: Path) -> None:
    path = tmp_path / "in" / f"images.{suffix}"
    path.parent.mkdir()
    path.write_bytes(ARRAYS[kind]())
    with harmless(tmp_path, canary, mebibytes=32), refused(str(path)):
        load("own", path=path)


def test_sizes_are_declared_before_memory_is_taken(tmp_path: Path) -> None:
    """A good header and one short of it: the limit counts bytes, not numbers."""
    path = tmp_path / "images.npy"
    path.write_bytes(_header("(16, 8192, 8192)", "|u1"))
    with refused("ends after 0 of 1073741824 bytes"):
        load("own", path=path)
    path.write_bytes(_header("(16, 8192, 8192)", "<f8"))
    with refused("it holds more than 1073741824 bytes"):
        load("own", path=path)


def _idx_header(*shape: int, kind: int = 8, axes: int | None = None) -> bytes:
    return bytes([0, 0, kind, len(shape) if axes is None else axes]) + struct.pack(f">{len(shape)}I", *shape)


IDX: dict[str, Callable[[], bytes]] = {
    "a petabyte": lambda: _idx_header(2**20, 2**15, 2**15),
    "a product that overflows": lambda: _idx_header(2**32 - 1, 2**32 - 1, 2**32 - 1) + bytes(64),
    "255 axes": lambda: _idx_header(1, axes=255) + bytes(2000),
    "no axes": lambda: _idx_header() + bytes(64),
    "an unknown type": lambda: _idx_header(20, 2, 2, kind=0x0A) + bytes(80),
    "numbers that are missing": lambda: _idx_header(20, 8, 8) + bytes(1279),
    "a header that is missing": lambda: _idx_header(20, 8, 8)[:9],
    "a bomb": lambda: _idx_header(2**10, 2**10, 2**11) + bytes(2**22),
    "a pickle": lambda: b"\0\0\x08\x03" + pickle.dumps([1]),
}


@pytest.mark.parametrize("kind", IDX)
@pytest.mark.parametrize(
    "name", ["images.idx", "images.idx.gz", "train-images-idx3-ubyte", "train-images-idx3-ubyte.gz"]
)
def test_a_hostile_idx_file_is_refused(kind: str, name: str, canary: Path, tmp_path: Path) -> None:
    path = tmp_path / "in" / name
    path.parent.mkdir()
    path.write_bytes(gzip.compress(IDX[kind]()) if name.endswith("gz") else IDX[kind]())
    for given in (path, path.parent):
        with harmless(tmp_path, canary, mebibytes=32), refused(str(given)):
            load("own", path=given)


@pytest.mark.parametrize("suffix", ["npy", "idx"])
def test_a_file_of_holes_is_mapped_and_refused_by_its_number_of_images(
    suffix: str, canary: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file system stores a gigabyte of zeros in nothing: neither the array nor the order of its images is made."""
    path = tmp_path / f"images.{suffix}"
    path.write_bytes(_header("(1073741824, 1, 1)") if suffix == "npy" else _idx_header(2**30, 1, 1))
    os.truncate(path, path.stat().st_size + 2**30)
    with harmless(tmp_path, canary, mebibytes=32), refused(str(path), "1073741824 images; expected at most 10000000"):
        load("own", path=path)


def test_resizing_does_not_lift_the_limits(canary: Path, tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    Image.new("1", (8192, folder.RESIZED_LIMIT // 8192 + 1)).save(tmp_path / "in" / "large.png")
    with harmless(tmp_path, canary, mebibytes=64), refused("large.png", "are more than 33554432"):
        load("own", path=tmp_path / "in", resize=8)


IMAGES = ["bmp", "gif", "jpeg", "png", "pgm", "tiff", "webp"]


@pytest.mark.parametrize("suffix", IMAGES)
def test_images_of_too_many_pixels_are_refused_by_their_header(suffix: str, canary: Path, tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    Image.new("L", (8192, folder.PIXEL_LIMIT // 8192 + 1)).save(tmp_path / "in" / f"large.{suffix}")
    with harmless(tmp_path, canary, mebibytes=64), refused(f"large.{suffix}", "resize it"):
        load("own", path=tmp_path / "in")


def test_a_kilobyte_of_400_million_pixels_is_refused(canary: Path, tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    header = struct.pack(">IIBBBBB", 20000, 20000, 1, 0, 0, 0, 0)
    chunks = [(b"IHDR", header), (b"IDAT", zlib.compress(bytes(20000 * 2501))), (b"IEND", b"")]
    parts = [struct.pack(">I", len(c)) + n + c + struct.pack(">I", zlib.crc32(n + c)) for n, c in chunks]
    (tmp_path / "in" / "bomb.png").write_bytes(b"\x89PNG\r\n\x1a\n" + b"".join(parts))
    with harmless(tmp_path, canary, mebibytes=32), refused("bomb.png"):
        load("own", path=tmp_path / "in")


def test_too_many_images_and_too_large_files_are_refused(
    canary: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "in").mkdir()
    for number in range(12):
        Image.new("L", (64, 64)).save(tmp_path / "in" / f"{number}.png")
    monkeypatch.setattr("dvaepp.data.arrays.ARRAY_LIMIT", 11 * 64 * 64)
    with harmless(tmp_path, canary), refused("12 images of 64x64; give at most 11"):
        load("own", path=tmp_path / "in")
    monkeypatch.setattr(folder, "IMAGE_FILE_LIMIT", 10)
    with harmless(tmp_path, canary), refused("0.png cannot be read: it holds more than 10 bytes"):
        load("own", path=tmp_path / "in")


@pytest.mark.parametrize("suffix", ["png", "jpg", "tiff"])
def test_an_image_that_needs_a_program_to_draw_is_refused(
    suffix: str, canary: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Pillow would hand PostScript of any name to Ghostscript."""
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "gs").write_text(f"#!/bin/sh\ntouch {canary}\n")
    (tmp_path / "bin" / "gs").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:{os.environ['PATH']}")
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / f"a.{suffix}").write_bytes(b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 8 8\n%%EndComments\n")
    with harmless(tmp_path, canary), refused(f"a.{suffix} cannot be read: no image of a known format"):
        load("own", path=tmp_path / "in")


@pytest.mark.parametrize("path", ["a\0b", "~nobody-of-this-name/x", "x" * 5000, "a/" * 3000, "/dev/zero", "/dev/null"])
def test_odd_paths_are_one_line(path: str, canary: Path, tmp_path: Path) -> None:
    with harmless(tmp_path, canary), refused():
        load("own", path=path)
    with harmless(tmp_path, canary), refused():
        dvaepp.data.check("mnist_static", path)


def test_a_folder_that_may_not_be_read_is_named(canary: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def denied(*arguments: object, **options: object) -> None:
        raise PermissionError(13, "Permission denied", str(path))

    path = tmp_path / "train-images-idx3-ubyte.gz"
    path.write_bytes(b"")
    monkeypatch.setattr(Path, "open", denied)
    with refused(str(path), "Permission denied", "make it readable"):
        dvaepp.data.check("mnist_dynamic", tmp_path)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of two steps on images of one's own."""
    folder = tmp_path_factory.mktemp("run")
    np.save(folder / "images.npy", np.random.RandomState(0).randint(0, 2, (20, 4, 4)).astype(np.uint8))
    overrides = ["training.steps=2", "model.groups=[4]", "training.batch_size=4", f"data.path={folder / 'images.npy'}"]
    recipe = recipes.build("table2.rbm", (), [*overrides, "training.validation_samples=1"])
    training.train(recipe, folder / "run", say=lambda line: None)
    return folder / "run"


@pytest.mark.parametrize("suffix", ["npy", "npz", "pt", "png"])
@pytest.mark.parametrize("form", PAYLOADS)
def test_encode_never_unpickles_images(
    form: str, suffix: str, run: Path, canary: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "in" / f"evil.{suffix}"
    path.parent.mkdir()
    path.write_bytes(payload(canary, form))
    for given in (path, path.parent):
        with harmless(tmp_path, canary), pytest.raises(SystemExit) as stop:
            cli.main(["encode", str(run), "--images", str(given), "--out", str(tmp_path / "work" / "bits.npz")])
        assert stop.value.code in (1, 2)
        out, err = capsys.readouterr()
        assert out == "" and err.startswith("dvaepp: ") and err.count("\n") == 1


@pytest.mark.parametrize("kind", ["a parent", "a petabyte", "a zip bomb"])
def test_encode_refuses_hostile_arrays(
    kind: str, run: Path, canary: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "images.npz").write_bytes(ARRAYS[kind]())
    with harmless(tmp_path, canary), pytest.raises(SystemExit) as stop:
        cli.main(["encode", str(run), "--images", str(tmp_path / "images.npz")])
    assert stop.value.code == 1 and capsys.readouterr().err.count("\n") == 1


@pytest.mark.parametrize("old", [False, True])
@pytest.mark.parametrize("form", PAYLOADS)
def test_a_checkpoint_is_never_unpickled(form: str, old: bool, run: Path, canary: Path, tmp_path: Path) -> None:
    """Neither in place of its tensors nor under the names of older versions, nor in place of the JSON beside it."""
    content = payload(canary, form)
    copy = tmp_path / "copy"
    (copy / "checkpoints").mkdir(parents=True)
    (copy / "recipe.json").write_bytes((run / "recipe.json").read_bytes())
    for path in (run / "checkpoints").iterdir():
        (copy / "checkpoints" / path.name).write_bytes(content if path.suffix == ".safetensors" else path.read_bytes())
    if old:
        for path in (copy / "checkpoints").iterdir():
            path.unlink()
        for name in ("best", "last"):
            (copy / "checkpoints" / f"{name}.safetensors").write_bytes(content)
    with harmless(tmp_path, canary), pytest.raises((OSError, UsageError), match="damaged"):
        dvaepp.load(copy)
    for path in [*(copy / "checkpoints").iterdir(), copy / "recipe.json"]:
        path.write_bytes(content)
    with harmless(tmp_path, canary), pytest.raises((OSError, UsageError)):
        dvaepp.load(copy)


def test_the_members_of_cifar10_are_within_the_limits() -> None:
    assert 10000 * 3073 < packed.CONTENT_LIMIT and 6 * 10000 * 3073 < packed.ARCHIVE_LIMIT
    assert 50000 * 2 * 784 < packed.CONTENT_LIMIT  # the largest file, static MNIST's
    assert (24345 + 8070) * 784 * 8 < matlab.MATRICES_LIMIT  # OMNIGLOT as doubles
    assert cifar10.FILES[0].others[1].member == WANTED
