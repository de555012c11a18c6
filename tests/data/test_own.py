"""Images of one's own: folders and arrays, and what is refused."""

import hashlib
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from dvaepp.data import DataError, load
from dvaepp.data.own import read_images
from dvaepp.data.parts import Options
from dvaepp.errors import UsageError
from tests.data.hostile import Canary

RANDOM = np.random.RandomState(0)
GREY = RANDOM.randint(0, 256, (40, 6, 5)).astype(np.uint8)
BITS = RANDOM.randint(0, 2, (40, 6, 5)).astype(np.uint8)


def folder(path: Path, images: np.ndarray[Any, np.dtype[Any]]) -> Path:
    for number, image in enumerate(images):
        place = path / ("even" if number % 2 == 0 else "odd") / f"{number:03}.png"
        place.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(image).save(place)
    return path


def saved(path: Path, array: np.ndarray[Any, np.dtype[Any]]) -> Path:
    np.save(path / "images.npy", array)
    return path / "images.npy"


def as_set(images: torch.Tensor) -> set[bytes]:
    return {image.numpy().tobytes() for image in images}


def test_a_folder_of_grey_images_is_dynamic(tmp_path: Path) -> None:
    path = folder(tmp_path / "pictures", GREY)
    (path / "notes.txt").write_text("no image")
    data = load("own", path=path)
    assert (data.name, data.image_shape, data.likelihood, data.dynamic) == ("own", (1, 6, 5), "bernoulli", True)
    assert (len(data.train), len(data.validation), len(data.test)) == (32, 4, 4)
    assert as_set(data.train) < as_set(torch.from_numpy(GREY).unsqueeze(1))
    assert data.validation.unique().tolist() == [0, 1]
    again = load("own", path=str(path))
    assert torch.equal(data.train, again.train) and torch.equal(data.test, again.test)
    assert data.checksum == again.checksum


def test_the_checksum_is_over_the_files_in_order(tmp_path: Path) -> None:
    path = folder(tmp_path, GREY)
    digests = [hashlib.sha256(file.read_bytes()).hexdigest() for file in sorted(path.rglob("*.png"))]
    assert load("own", path=path).checksum == hashlib.sha256("".join(digests).encode()).hexdigest()


@pytest.mark.parametrize("scale", [1, 255])
def test_a_folder_of_two_values_is_static(scale: int, tmp_path: Path) -> None:
    data = load("own", path=folder(tmp_path, BITS * scale))
    assert not data.dynamic
    everything = torch.cat([data.train, data.validation, data.test])
    assert as_set(everything) == as_set(torch.from_numpy(BITS).unsqueeze(1))
    assert torch.equal(data.batch(torch.arange(5), torch.Generator()), data.train[:5].float())


def test_colour_is_turned_to_grey(tmp_path: Path) -> None:
    data = load("own", path=folder(tmp_path, np.stack([GREY] * 3, axis=-1)))
    assert as_set(data.train) < as_set(torch.from_numpy(GREY).unsqueeze(1))


@pytest.mark.parametrize(
    ("array", "dynamic"),
    [
        (GREY, True),
        (GREY / 255, True),
        ((GREY / 255).astype(np.float32), True),
        (GREY.astype(np.int64), True),
        (BITS, False),
        (BITS.astype(bool), False),
        (BITS.astype(np.float32), False),
    ],
)
def test_arrays_of_bytes_floats_and_bits_are_read(
    array: np.ndarray[Any, np.dtype[Any]], dynamic: bool, tmp_path: Path
) -> None:
    data = load("own", path=saved(tmp_path, array))
    assert (data.dynamic, data.image_shape) == (dynamic, (1, 6, 5))
    expected = as_set(torch.from_numpy(GREY if dynamic else BITS).unsqueeze(1))
    assert as_set(data.train) < expected


def test_flat_square_images_and_npz_are_read(tmp_path: Path) -> None:
    flat = RANDOM.randint(0, 256, (20, 49)).astype(np.uint8)
    assert load("own", path=saved(tmp_path, flat)).image_shape == (1, 7, 7)
    np.savez_compressed(tmp_path / "one.npz", anything=flat)
    assert len(load("own", path=tmp_path / "one.npz").train) == 16
    np.savez(tmp_path / "two.npz", images=flat, labels=np.arange(20))
    assert len(load("own", path=tmp_path / "two.npz").train) == 16
    np.savez(tmp_path / "odd.npz", a=flat, b=flat)
    with pytest.raises(UsageError, match=r"holds 2 arrays \(a, b\); name the wanted one 'images'"):
        load("own", path=tmp_path / "odd.npz")


def test_all_images_are_read_in_their_order_for_encoding(tmp_path: Path) -> None:
    path = saved(tmp_path, BITS[:3])
    assert torch.equal(read_images(path, Options()), torch.from_numpy(BITS[:3]).unsqueeze(1).float())
    grey = read_images(folder(tmp_path / "grey", GREY[:3]), Options())
    assert grey.unique().tolist() == [0.0, 1.0]
    assert torch.equal(grey, read_images(tmp_path / "grey", Options()))


def test_a_name_of_the_library_is_not_lent_to_own_images(tmp_path: Path) -> None:
    assert load("mnist_static", path=saved(tmp_path, GREY)).name == "images"


@pytest.mark.parametrize(
    ("array", "message"),
    [
        (GREY[:9], "holds 9 images; a split into three parts needs at least 10"),
        (GREY[:0], "holds no pixels"),
        (GREY.astype(np.int16) - 1, r"values from -1 to 25\d; expected int16 in \[0, 255\]"),
        (GREY.astype(np.int16) * 2, r"expected int16 in \[0, 255\]"),
        (GREY.astype(np.float32), r"expected float32 in \[0, 1\]"),
        (np.full((20, 4, 4), np.nan), r"values from nan to nan"),
        (GREY.reshape(40, 30), r"shape \(40, 30\); expected \(n, height, width\)"),
        (GREY[0, 0], r"shape \(5,\)"),
        (np.full((20, 4, 4), "a"), "values of type <U1"),
        (np.full((20, 4, 4), 1j), "values of type complex128"),
    ],
)
def test_unfit_arrays_are_refused(array: np.ndarray[Any, np.dtype[Any]], message: str, tmp_path: Path) -> None:
    path = saved(tmp_path, array)
    with pytest.raises(UsageError, match=message) as error:
        load("own", path=path)
    assert str(path) in str(error.value) and "\n" not in str(error.value)


@pytest.mark.parametrize("form", ["npy", "npz", "bare pickle"])
def test_pickled_objects_are_refused_and_never_run(form: str, tmp_path: Path) -> None:
    canary = tmp_path / "canary"
    objects = np.array([Canary(canary)] * 20, dtype=object)
    path = tmp_path / ("objects.npz" if form == "npz" else "objects.npy")
    if form == "npz":
        np.savez(path, images=objects)
    elif form == "npy":
        np.save(path, objects, allow_pickle=True)
    else:
        path.write_bytes(pickle.dumps(Canary(canary)))
    with pytest.raises(DataError, match="objects.np[yz] cannot be read .*pickled objects"):
        load("own", path=path)
    assert not canary.exists()
    if form == "bare pickle":
        pickle.loads(path.read_bytes())
        assert canary.exists()  # the canary sings where pickles are run


def test_truncated_arrays_are_named(tmp_path: Path) -> None:
    path = saved(tmp_path, GREY)
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(DataError, match="images.npy cannot be read"):
        load("own", path=path)
    path.write_bytes(b"")
    with pytest.raises(DataError, match="images.npy cannot be read"):
        load("own", path=path)
    np.savez_compressed(tmp_path / "some.npz", images=GREY)
    packed = bytearray((tmp_path / "some.npz").read_bytes())
    (tmp_path / "cut.npz").write_bytes(packed[:-40])
    packed[200] ^= 255
    (tmp_path / "bent.npz").write_bytes(packed)
    for name in ("cut.npz", "bent.npz"):
        with pytest.raises(DataError, match=f"{name} cannot be read"):
            load("own", path=tmp_path / name)


def test_an_empty_folder_and_other_paths_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="holds no images"):
        load("own", path=tmp_path)
    for path in (tmp_path / "absent", tmp_path / "absent.npy"):
        with pytest.raises(UsageError, match=rf"there is no file or folder {path}$"):
            load("own", path=path)
    (tmp_path / "notes.txt").write_text("no images")
    with pytest.raises(UsageError, match="neither a folder of images nor an .npy, .npz or IDX file"):
        load("own", path=tmp_path / "notes.txt")


def test_mixed_sizes_name_both_files(tmp_path: Path) -> None:
    folder(tmp_path, GREY)
    Image.new("L", (9, 4)).save(tmp_path / "odd" / "zz.png")
    with pytest.raises(UsageError, match=r"even/000.png is 6x5, .*odd/zz.png is 4x9 .*data.resize"):
        load("own", path=tmp_path)


@pytest.mark.parametrize("kind", ["text", "truncated", "empty", "16 bit", "bomb", "large"])
def test_an_unreadable_image_is_named(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bad = folder(tmp_path, GREY) / "odd" / "bad.png"
    pixels = {"bomb": 64 * 64, "large": 40 * 40}  # above the limit Pillow raises at twice as many, and warns below
    if kind in pixels:
        monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 1000)
        side = round(pixels[kind] ** 0.5)
        Image.new("L", (side, side)).save(bad)
    elif kind == "16 bit":
        Image.fromarray(np.full((6, 5), 40000, np.uint16)).save(bad)
    else:
        content = (tmp_path / "odd" / "001.png").read_bytes()
        bad.write_bytes({"text": b"not an image", "truncated": content[:-30], "empty": b""}[kind])
    with pytest.raises(DataError, match=r"odd/bad.png cannot be read: .") as error:
        load("own", path=tmp_path)
    assert "\n" not in str(error.value)
