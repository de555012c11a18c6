"""Images of one's own beyond grey folders: colour, mixed sizes, IDX files, layouts, arrays mapped from their file."""

import gzip
import json
import os
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from dvaepp import cli, recipes
from dvaepp.data import DataError, arrays, as_dataset, load
from dvaepp.data.mapped import Mapped
from dvaepp.errors import UsageError
from tests.training.toy import SMALL_IMAGES

RANDOM = np.random.RandomState(0)
GREY = RANDOM.randint(0, 256, (40, 6, 5)).astype(np.uint8)
RGB = RANDOM.randint(0, 256, (40, 6, 5, 3)).astype(np.uint8)
BITS = RANDOM.randint(0, 2, (40, 6, 5)).astype(np.uint8)


def idx(array: Any, kind: int = 8) -> bytes:
    return bytes([0, 0, kind, array.ndim]) + struct.pack(f">{array.ndim}I", *array.shape) + array.tobytes()


def photographs(folder: Path, grey: bool = True) -> Path:
    """30 RGB images of other sizes, every fifth grey; the left half is darker than the right one."""
    folder.mkdir()
    for number in range(30):
        height, width = 8 + number % 5, 9 + number % 7
        image = np.full((height, width, 3), 40, np.uint8)
        image[:, width // 2 :] = (200, 100 + number, 30)
        picture = Image.fromarray(image)
        (picture.convert("L") if grey and number % 5 == 0 else picture).save(folder / f"{number:02}.png")
    return folder


def test_photographs_of_mixed_sizes_keep_their_colours(tmp_path: Path) -> None:
    path = photographs(tmp_path / "photos")
    data = load("own", path=path, likelihood="logistic_mixture", resize="8x6")
    assert (data.image_shape, data.likelihood, data.dynamic) == ((3, 8, 6), "logistic_mixture", False)
    assert data.summary == (
        "read 30 images, 24 of them RGB, 8x9 to 12x14 -> 8x6, the middle of each (height x width), colours kept, "
        "split 24/3/3"
    )
    everything = torch.cat([data.train, data.validation, data.test]).float()
    assert (everything[:, 0, :, 0] < everything[:, 0, :, -1]).all(), "nothing is turned or mirrored"
    red, blue = everything[:, 0, :, -1], everything[:, 2, :, -1]
    assert ((red - blue > 100).all(1) | (red == blue).all(1)).all(), (
        "red comes first, and grey has three equal channels"
    )
    with pytest.raises(UsageError, match=r"differ in size: .*00.png is 8x9, .*01.png is 9x10 .* data.resize=32"):
        load("own", path=path, likelihood="logistic_mixture")


def test_colours_are_dropped_with_a_word(tmp_path: Path) -> None:
    data = load("own", path=photographs(tmp_path / "photos"), resize=8)
    assert data.image_shape == (1, 8, 8) and data.dynamic
    assert "colours dropped (data.likelihood=logistic_mixture keeps them), binarised anew in each batch" in data.summary


def test_grey_files_have_one_channel_for_the_mixture(tmp_path: Path) -> None:
    for number, image in enumerate(GREY):
        Image.fromarray(image).save(tmp_path / f"{number:02}.png")
    data = load("own", path=tmp_path, likelihood="logistic_mixture")
    assert data.image_shape == (1, 6, 5)
    assert torch.equal(data.train, as_dataset(GREY, likelihood="logistic_mixture").train)
    assert "256 grey levels" in data.summary


def test_a_camera_held_upright_is_turned_back(tmp_path: Path) -> None:
    exif = Image.Exif()
    exif[0x0112] = 6  # turn by 90 degrees to the right
    for number in range(10):
        Image.fromarray(RGB[0]).save(tmp_path / f"{number}.png", exif=exif)
    data = load("own", path=tmp_path, likelihood="logistic_mixture")
    assert data.image_shape == (3, 5, 6)
    assert np.array_equal(data.train[0].permute(1, 2, 0).numpy(), np.rot90(RGB[0], -1))


def test_large_photographs_are_read_where_they_are_made_small(tmp_path: Path) -> None:
    for number in range(10):
        Image.new("RGB", (2100, 2000), (number, 0, 0)).save(tmp_path / f"{number}.jpg")
    assert load("own", path=tmp_path, likelihood="logistic_mixture", resize=4).image_shape == (3, 4, 4)
    with pytest.raises(DataError, match=r"0.jpg cannot be read: its 4200000 pixels are more .* data.resize"):
        load("own", path=tmp_path)


@pytest.mark.parametrize("form", ["n 1 h w", "n h w 1", "n 3 h w", "n h w 3"])
def test_array_files_of_every_layout_are_read(form: str, tmp_path: Path) -> None:
    arrays_ = {
        "n 1 h w": GREY[:, None],
        "n h w 1": GREY[..., None],
        "n 3 h w": RGB.transpose(0, 3, 1, 2),
        "n h w 3": RGB,
    }
    np.save(tmp_path / "images.npy", arrays_[form])
    data = load("own", path=tmp_path / "images.npy", likelihood="logistic_mixture")
    expected = as_dataset(GREY if "1" in form else RGB, likelihood="logistic_mixture")
    assert torch.equal(data.train, expected.train)


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("name", ["images-idx3-ubyte", "digits.idx", "digits"])
def test_an_idx_file_is_read_packed_or_plain(packed: bool, name: str, tmp_path: Path) -> None:
    path = tmp_path / (f"{name}.gz" if packed else name)
    path.write_bytes(gzip.compress(idx(GREY)) if packed else idx(GREY))
    assert torch.equal(load("own", path=path).train, as_dataset(GREY).train)


@pytest.mark.parametrize(("kind", "dtype"), [(0x09, ">i1"), (0x0B, ">i2"), (0x0C, ">i4"), (0x0D, ">f4"), (0x0E, ">f8")])
def test_idx_files_of_every_type_are_read(kind: int, dtype: str, tmp_path: Path) -> None:
    (tmp_path / "a.idx").write_bytes(idx(BITS.astype(dtype), kind))
    assert torch.equal(load("own", path=tmp_path / "a.idx").train, as_dataset(BITS).train)


@pytest.mark.parametrize("end", ["", ".gz"])
def test_a_folder_with_the_names_of_mnist_brings_its_test_set_and_labels(end: str, tmp_path: Path) -> None:
    parts = {
        "train-images-idx3": GREY,
        "train-labels-idx1": np.arange(40, dtype=np.uint8),
        "t10k-images-idx3": GREY[::-1],
        "t10k-labels-idx1": np.arange(40, dtype=np.uint8)[::-1],
    }
    for name, part in parts.items():
        content = idx(np.ascontiguousarray(part))
        (tmp_path / f"{name}-ubyte{end}").write_bytes(gzip.compress(content) if end else content)
    data = load("own", path=tmp_path, likelihood="logistic_mixture")
    assert [len(data.train), len(data.validation), len(data.test)] == [36, 4, 40]
    assert torch.equal(data.test, torch.from_numpy(GREY[::-1].copy())[:, None])
    for split in ("train", "validation", "test"):
        assert torch.equal(torch.from_numpy(GREY)[data.labels[split], None], getattr(data, split))
    (tmp_path / f"t10k-labels-idx1-ubyte{end}").write_bytes(gzip.compress(idx(GREY[0, 0])) if end else idx(GREY[0, 0]))
    with pytest.raises(DataError, match=r"holds 40 images, and its labels have the shape \(5,\)"):
        load("own", path=tmp_path)


@pytest.mark.parametrize("array", [GREY, BITS, RGB, GREY / 255, np.asfortranarray(GREY)])
@pytest.mark.parametrize("likelihood", ["bernoulli", "logistic_mixture"])
def test_a_large_array_is_mapped_and_gives_the_same_images(
    likelihood: Any, array: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    np.save(tmp_path / "images.npy", array)
    expected = load("own", path=tmp_path / "images.npy", likelihood=likelihood)
    monkeypatch.setattr(arrays, "MAP_ABOVE", 100)
    monkeypatch.setattr("dvaepp.data.reading.CHUNK", 128)  # several pieces
    data = load("own", path=tmp_path / "images.npy", likelihood=likelihood)
    assert isinstance(data.train, Mapped) and "mapped from the file" in data.summary
    assert data.train.shape == expected.train.shape and data.checksum == expected.checksum
    assert torch.equal(data.train[:], expected.train) and torch.equal(data.train_mean, expected.train_mean)
    indices = torch.tensor([7, 3, 3, 0])
    a, b = (each.batch(indices, torch.Generator().manual_seed(0)) for each in (data, expected))
    assert torch.equal(a, b)
    for split in ("train", "validation", "test"):  # binarised once: the same bits in any order of reading
        whole = data.images(split)
        assert torch.equal(whole[:3].flip(0), data.images(split, torch.tensor([2, 1, 0])))
        assert whole.shape == expected.images(split).shape


def test_bits_of_mapped_grey_images_have_the_right_mean(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """1000 images of one grey level: the share of ones within 5 standard errors of grey / 255."""
    monkeypatch.setattr(arrays, "MAP_ABOVE", 100)
    flat = np.full((1000, 10, 10), 200, np.uint8)
    flat[0, 0, 0] = 0  # not of two values
    flat[0, 0, 1] = 255
    np.save(tmp_path / "flat.npy", flat)
    bits = load("own", path=tmp_path / "flat.npy").images("test")
    p = 200 / 255
    assert abs(bits.mean().item() - p) < 5 * (p * (1 - p) / bits.numel()) ** 0.5
    assert bits[0].ne(bits[1]).any(), "each image has noise of its own"


def test_an_idx_file_is_mapped_and_a_packed_one_is_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "plain.idx").write_bytes(idx(GREY))
    (tmp_path / "packed.gz").write_bytes(gzip.compress(idx(GREY)))
    monkeypatch.setattr(arrays, "MAP_ABOVE", 100)
    plain, packed = (load("own", path=tmp_path / name) for name in ("plain.idx", "packed.gz"))
    assert isinstance(plain.train, Mapped) and not isinstance(packed.train, Mapped)
    assert torch.equal(plain.train[:], packed.train)


def test_a_memory_map_of_the_callers_stays_one(tmp_path: Path) -> None:
    np.save(tmp_path / "images.npy", GREY)
    data = as_dataset(np.load(tmp_path / "images.npy", mmap_mode="r", allow_pickle=False))
    assert isinstance(data.train, Mapped) and torch.equal(data.train[:], as_dataset(GREY).train)


def test_paths_in_a_recipe_mean_the_same_from_everywhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    np.save(tmp_path / "images.npy", GREY)
    monkeypatch.chdir(tmp_path)
    recipe = recipes.build("table2.rbm", (), ["data.path=images.npy"])
    assert recipe.data.path == str(tmp_path / "images.npy")
    monkeypatch.chdir("/")
    assert len(recipe.data.load().train) == 32
    monkeypatch.setenv("HOME", str(tmp_path))
    assert recipes.build("table2.rbm", (), ["data.path=~/images.npy"]).data.path == os.path.join(tmp_path, "images.npy")


@pytest.mark.parametrize(
    ("recipe", "overrides", "message"),
    [
        ("table2.rbm", ["data.path=x", "data.likelihood=logistic_mixture"], "needs a convolutional model"),
        ("table2.rbm", ["data.resize=8"], "resize is for images of one's own, and mnist_static has its own"),
        ("table2.rbm", ["data.path=x", "data.resize=8by8"], "resize is a number of pixels such as 32"),
        ("table2.rbm", ["data.path=x", "data.white=0"], "greater than 0"),
        ("table3.rbm", ["data.path=x", "data.resize=33"], "data.resize is 33x33; model.image_size takes at most 32"),
        ("table3.rbm", ["data.path=x", "data.likelihood=gaussian"], "bernoulli"),
    ],
)
def test_unfit_settings_are_refused_before_anything_is_read(recipe: str, overrides: list[str], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        recipes.build(recipe, (), overrides)


def test_the_model_takes_the_likelihood_that_the_data_is_read_for() -> None:
    recipe = recipes.build("table3.rbm", ["size=small"], ["data.path=x", "data.likelihood=logistic_mixture"])
    assert recipe.model.likelihood == recipe.data.likelihood == "logistic_mixture"
    colour = recipes.build("table3.rbm", ["dataset=cifar10", "size=small"], ["data.path=x"])
    assert colour.data.likelihood == "logistic_mixture", "the model's own, without a word"
    assert recipes.override(colour, ["data.likelihood=bernoulli"]).model.likelihood == "bernoulli"


@pytest.mark.parametrize("conditional", [False, True])
@pytest.mark.parametrize("kind", ["photographs", "grey idx"])
def test_a_convolutional_recipe_goes_from_own_images_to_a_report(
    kind: str, conditional: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    if kind == "photographs":
        path = photographs(tmp_path / "photos")
    else:
        path = tmp_path / "images.idx"
        path.write_bytes(idx(GREY))
    settings = SMALL_IMAGES | {
        "data.path": path,
        "data.resize": 8,
        "data.likelihood": "logistic_mixture",
        "model.conditional": str(conditional).lower(),
        "training.steps": 2,
        "training.batch_size": 4,
        "chains.num_chains": 4,
        "chains.num_sweeps": 1,
    }
    run = tmp_path / "run"
    flags = [part for key, value in settings.items() for part in ("--set", f"{key}={value}")]
    cli.main(["train", "table3.rbm", "size=small", *flags, "--run-dir", str(run)])
    assert "-> 8x8" in capsys.readouterr().err
    cli.main(["evaluate", str(run), "--samples", "2", "--json"])
    channels = 3 if kind == "photographs" else 1
    result = json.loads(capsys.readouterr().out)
    nats = -result["log_likelihood"] / (64 * channels)
    assert 0.5 < nats < 3 * np.log(256), "an untrained model is near 256 equal levels"
    cli.main(["encode", str(run), "--images", str(path), "--out", str(tmp_path / "bits.npz")])
    cli.main(["report", str(run)])
    page = (run / "report.html").read_text()
    assert page.count("data:image/png;base64,") >= 2 and "left out" not in page
    with Image.open(run / "samples" / "reconstructions.png") as sheet:
        assert sheet.mode == ("RGB" if channels == 3 else "L")
