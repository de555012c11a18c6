"""Data files damaged at random: an error of ours in one line, or images; nothing else, and not for long.

60 files in every run of the suite; 500 with `DVAEPP_FUZZ=1`.
"""

import gzip
import hashlib
import importlib
import io
import lzma
import os
import random
import tarfile
import time
import zipfile
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from scipy.io import savemat

from dvaepp.data import DataError, load, store
from dvaepp.data.base import File
from dvaepp.errors import UsageError
from tests.data.hostile import MEBIBYTE, memory, peak_memory

NUM_FILES = 500 if "DVAEPP_FUZZ" in os.environ else 60
SECONDS = 10  # for one file; the demonstration's csv takes half a second
RANDOM = np.random.RandomState(0)
BITS = RANDOM.randint(0, 2, (12, 28, 28)).astype(np.uint8)
GREY = RANDOM.randint(0, 256, (12, 28, 28)).astype(np.uint8)
Content = dict[str, bytes]  # files by name


def _idx(array: "np.ndarray[Any, Any]") -> bytes:
    sizes = np.array(array.shape, ">i4").tobytes()
    return bytes([0, 0, 8, array.ndim]) + sizes + array.astype(np.uint8).tobytes()


def _mnist_dynamic() -> Content:
    labels = np.arange(12)
    parts = {"train-images-idx3": GREY, "train-labels-idx1": labels, "t10k-images-idx3": GREY[:4]}
    return {f"{name}-ubyte": _idx(part) for name, part in {**parts, "t10k-labels-idx1": labels[:4]}.items()}


def _mnist_static() -> Content:
    lines = "".join(" ".join(map(str, image.flatten())) + "\n" for image in BITS).encode()
    return {f"binarized_mnist_{part}.amat": lines for part in ("train", "valid", "test")}


def _matlab(packed: bool, **variables: Any) -> bytes:
    buffer = io.BytesIO()
    savemat(buffer, variables, do_compression=packed)
    return buffer.getvalue()


def _omniglot(packed: bool) -> Content:
    data, target = (GREY / 255).reshape(12, 784).T, np.eye(50)[:, :12]
    variables = {"data": data, "testdata": data.astype(np.float32), "target": target, "testtarget": target > 0}
    return {"chardata.mat": _matlab(packed, **variables, names=np.array(["a", "b"], dtype=object))}


def _caltech(packed: bool) -> Content:
    parts = {f"{part}_data": BITS.reshape(12, 784) for part in ("train", "val", "test")}
    labels = {f"{part}_labels": np.arange(1, 13)[:, None] for part in ("train", "val", "test")}
    return {"caltech101_silhouettes_28_split1.mat": _matlab(packed, **parts, **labels)}


def _cifar10() -> Content:
    records = RANDOM.randint(0, 10, (4, 3073)).astype(np.uint8).tobytes()
    return {f"{stem}.bin": records for stem in (*(f"data_batch_{n}" for n in range(1, 6)), "test_batch")}


def _cifar10_tar() -> Content:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        for name, content in _cifar10().items():
            info = tarfile.TarInfo(f"cifar-10-batches-bin/{name}")
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
    return _packed({"cifar-10-binary.tar": buffer.getvalue()}, ".gz")


def _demo() -> Content:
    """Of 5000 different rows, as the parser wants them; digits of one letter keep it small."""
    rows = RANDOM.randint(0, 10, (5000, 785)).astype(np.uint8) + ord("0")
    lines = np.full((5000, 2 * 785), ord(","), np.uint8)
    lines[:, ::2], lines[:, -1] = rows, ord("\n")
    return _packed({"mnist_5k.csv": lines.tobytes()}, ".gz")


def _packed(files: Content, suffix: str) -> Content:
    return {f"{name}{suffix}": _pack(suffix, content) for name, content in files.items()}


def _pack(suffix: str, content: bytes) -> bytes:
    return gzip.compress(content, 1) if suffix == ".gz" else lzma.compress(content, preset=0)


def _array(save: Callable[..., None], name: str, **arrays: Any) -> Content:
    buffer = io.BytesIO()
    save(buffer, **arrays)
    return {name: buffer.getvalue()}


def _images(suffix: str, mode: str = "L") -> Content:
    files = {}
    for number, image in enumerate(GREY):
        buffer = io.BytesIO()
        Image.fromarray(image).convert(mode).save(buffer, {"jpg": "JPEG", "pgm": "PPM"}.get(suffix, suffix))
        files[f"{number}.{suffix}"] = buffer.getvalue()
    return files


SPECIMENS: dict[str, tuple[str, Callable[[], Content]]] = {  # data set and its files, by what they are
    "idx": ("mnist_dynamic", _mnist_dynamic),
    "idx.gz": ("mnist_dynamic", lambda: _packed(_mnist_dynamic(), ".gz")),
    "amat": ("mnist_static", _mnist_static),
    "amat.gz": ("mnist_static", lambda: _packed(_mnist_static(), ".gz")),
    "mat": ("omniglot", lambda: _omniglot(False)),
    "mat, packed": ("omniglot", lambda: _omniglot(True)),
    "mat of bytes": ("caltech", lambda: _caltech(False)),
    "mat of bytes, packed": ("caltech", lambda: _caltech(True)),
    "bin": ("cifar10", _cifar10),
    "bin.xz": ("cifar10", lambda: _packed(_cifar10(), ".xz")),
    "tar.gz": ("cifar10", _cifar10_tar),
    "csv.gz": ("demo", _demo),
    "npy": ("", lambda: _array(np.save, "a.npy", arr=GREY)),
    "npy of floats": ("", lambda: _array(np.save, "a.npy", arr=np.asfortranarray(GREY / 255))),
    "npz": ("", lambda: _array(np.savez, "a.npz", images=BITS, labels=np.arange(12))),
    "npz, packed": ("", lambda: _array(np.savez_compressed, "a.npz", anything=GREY)),
    **{suffix: ("", lambda suffix=suffix: _images(suffix)) for suffix in ("png", "jpg", "gif", "bmp", "pgm")},
    "tiff": ("", lambda: _images("tiff", "RGB")),
    "webp": ("", lambda: _images("webp", "RGB")),
    "png of a palette": ("", lambda: _images("png", "P")),
}


def _damage(content: bytes, chance: random.Random, depth: int = 0) -> bytes:
    """One or two random changes; of an unpacked file, too, so that they reach the parser behind the unpacker."""
    if depth == 0 and chance.random() < 0.6:
        repacked = _inside(content, chance)
        if repacked is not None:
            return repacked
    data = bytearray(content)
    for _ in range(chance.choice([1, 1, 2])):
        start = chance.randrange(len(data) + 1)
        size = chance.choice([1, 2, 4, 8, 64, 1000])
        match chance.choice(["cut", "flip", "flip", "flip head", "head", "insert", "delete", "zero", "ones", "junk"]):
            case "cut":
                del data[start:]
            case "flip" if data:
                for _ in range(chance.choice([1, 1, 8, 100])):
                    data[chance.randrange(len(data))] ^= 1 << chance.randrange(8)
            case "flip head" if data:
                data[chance.randrange(min(200, len(data)))] ^= 1 << chance.randrange(8)
            case "head":
                data[: min(size, 64)] = chance.randbytes(min(size, 64))
            case "insert":
                data[start:start] = chance.randbytes(size)
            case "delete":
                del data[start : start + size]
            case "zero":
                data[start : start + size] = bytes(size)
            case "ones":
                data[start : start + size] = b"\xff" * size
            case "junk":
                data = bytearray(chance.randbytes(size) if chance.random() < 0.5 else b"")
    return bytes(data)


def _inside(content: bytes, chance: random.Random) -> bytes | None:
    """The same file with damaged contents, packed again."""
    if content[:2] == b"\x1f\x8b":
        return gzip.compress(_damage(gzip.decompress(content), chance, 1), 1)
    if content[:6] == b"\xfd7zXZ\0":
        return lzma.compress(_damage(lzma.decompress(content), chance, 1), preset=0)
    if content[:2] == b"PK":
        buffer = io.BytesIO()
        with zipfile.ZipFile(io.BytesIO(content)) as old, zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as new:
            for name in old.namelist():
                new.writestr(name, _damage(old.read(name), chance, 1))
        return buffer.getvalue()
    return None


def _expect(name: str, patch: pytest.MonkeyPatch, digests: dict[str, str]) -> None:
    """Expect these digests of files by name; any content of the others."""

    def changed(file: File) -> File:
        others = tuple(changed(other) for other in file.others)
        return replace(file, digest=digests.get(Path(file.path).name, ""), others=others)

    module = importlib.import_module(f"dvaepp.data.{name}")
    patch.setattr(module, "FILES", [changed(file) for file in module.FILES])
    if hasattr(module, "NUM_TRAIN"):
        patch.setattr(module, "NUM_TRAIN", 8)


def _attempt(name: str, folder: Path, files: Content) -> str:
    """Load what is in the folder; the kind of the outcome."""
    path = None if name else folder / next((file for file in files if file[-3:] in ("npy", "npz")), "")
    try:
        load(name or "own", folder, path)
    except (DataError, UsageError) as error:
        assert "\n" not in str(error) and 0 < len(str(error)) < 2000
        return type(error).__name__
    return "read"


@pytest.mark.parametrize("kind", SPECIMENS)
def test_the_specimens_are_read_before_they_are_damaged(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name, files = SPECIMENS[kind]
    for file, content in files().items():
        (tmp_path / file).write_bytes(content)
    if name:
        _expect(name, monkeypatch, {})
    assert _attempt(name, tmp_path, files()) == "read"


def _one(seed: int, good: dict[str, Content], folder: Path) -> tuple[str, str]:
    """Damage one file of one specimen and load it, with checksums or past them."""
    chance = random.Random(seed)
    kind = list(SPECIMENS)[seed % len(SPECIMENS)]
    name, files = SPECIMENS[kind][0], good[kind]
    verified = bool(name) and name != "demo" and chance.random() < 0.25
    victim = chance.choice(list(files))
    bent = _damage(files[victim], chance)
    for file, content in {**files, victim: bent}.items():
        (folder / file).write_bytes(content)
    digests = {file: f"sha256:{hashlib.sha256(content).hexdigest()}" for file, content in files.items()}
    store.forget()
    with pytest.MonkeyPatch.context() as patch:
        if name:
            _expect(name, patch, digests if verified else {})
        outcome = _attempt(name, folder, files)
    assert not verified or outcome == "DataError" or bent == files[victim]
    for file in files:
        (folder / file).unlink()
    return "verified" if verified else "not verified", outcome


@pytest.mark.timeout(900)
def test_damaged_files_are_one_line_or_images(tmp_path: Path) -> None:
    good = {kind: files() for kind, (_, files) in SPECIMENS.items()}
    outcomes: Counter[tuple[str, str]] = Counter()
    failures, slowest = [], 0.0
    held, peak, started = memory(), peak_memory(), time.monotonic()
    for seed in range(NUM_FILES):
        begun = time.monotonic()
        (tmp_path / str(seed)).mkdir()
        try:
            outcomes[_one(seed, good, tmp_path / str(seed))] += 1
        except Exception as error:
            failures.append(f"{seed}: {type(error).__name__}: {error}"[:300])
        slowest = max(slowest, time.monotonic() - begun)
    print(f"\n{NUM_FILES} damaged files in {time.monotonic() - started:.0f} s, slowest {slowest:.2f} s")
    print(f"memory {(memory() - held) / MEBIBYTE:+.0f} MiB, peak {(peak_memory() - peak) / MEBIBYTE:+.0f} MiB")
    print({" ".join(key): count for key, count in sorted(outcomes.items())})
    assert not failures, "\n".join(failures)
    assert slowest < SECONDS
    assert peak_memory() - peak < 200 * MEBIBYTE
    assert outcomes["verified", "DataError"] > 0 and outcomes["not verified", "read"] > 0
