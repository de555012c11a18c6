"""Data in memory: tensors, arrays and torch Datasets as data sets, and what is refused."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, IterableDataset, TensorDataset

from dvaepp.data import Dataset, as_dataset
from dvaepp.errors import UsageError

RANDOM = np.random.RandomState(0)
GREY = RANDOM.randint(0, 256, (40, 6, 5)).astype(np.uint8)
RGB = RANDOM.randint(0, 256, (40, 6, 5, 3)).astype(np.uint8)
BITS = RANDOM.randint(0, 2, (40, 6, 5)).astype(np.uint8)


def as_set(images: torch.Tensor) -> set[bytes]:
    return {image.numpy().tobytes() for image in images}


def everything(data: Dataset) -> torch.Tensor:
    return torch.cat([data.train[:], data.validation[:], data.test[:]])


@pytest.mark.parametrize(
    "given",
    [GREY, GREY[:, None], GREY[..., None], torch.from_numpy(GREY), GREY / 255, torch.from_numpy(GREY / 255).float()],
    ids=["n h w", "n 1 h w", "n h w 1", "tensor", "float64", "float32 tensor"],
)
def test_grey_images_in_every_layout_and_type_are_one_data_set(given: Any) -> None:
    data = as_dataset(given)
    assert (data.image_shape, data.dynamic, data.flat) == ((1, 6, 5), True, False)
    assert torch.equal(data.train, as_dataset(GREY).train)
    assert [len(data.train), len(data.validation), len(data.test)] == [32, 4, 4]


@pytest.mark.parametrize("given", [RGB, RGB.transpose(0, 3, 1, 2), torch.from_numpy(RGB), RGB / 255.0])
def test_colours_are_kept_for_the_mixture_channels_first(given: Any) -> None:
    data = as_dataset(given, likelihood="logistic_mixture")
    assert (data.image_shape, data.likelihood, data.dynamic) == ((3, 6, 5), "logistic_mixture", False)
    assert as_set(everything(data)) == as_set(torch.from_numpy(RGB.transpose(0, 3, 1, 2).copy()))
    x = data.images("test")
    assert torch.equal(((x + 1) * 127.5).round().byte(), data.test)


def test_one_grey_channel_has_256_levels_for_the_mixture() -> None:
    data = as_dataset(GREY, likelihood="logistic_mixture")
    assert data.image_shape == (1, 6, 5) and as_set(everything(data)) == as_set(torch.from_numpy(GREY[:, None]))
    bits = as_dataset(BITS, likelihood="logistic_mixture")
    assert set(everything(bits).unique().tolist()) == {0, 255}, "black and white are the outermost levels"


def test_colour_becomes_grey_as_pillow_makes_it() -> None:
    from PIL import Image

    grey = np.stack([np.asarray(Image.fromarray(image).convert("L")) for image in RGB])
    data = as_dataset(RGB)
    assert torch.equal(data.train, as_dataset(grey).train)
    assert "colours dropped (data.likelihood=logistic_mixture keeps them)" in data.summary


def test_bits_stay_bits_whatever_their_type() -> None:
    for given in (BITS, BITS.astype(bool), BITS * 255, BITS.astype(np.float32), torch.from_numpy(BITS).float()):
        data = as_dataset(given)
        assert not data.dynamic and as_set(everything(data)) == as_set(torch.from_numpy(BITS[:, None]))


def test_rows_of_numbers_reach_the_model_as_rows() -> None:
    data = as_dataset(torch.from_numpy(BITS).reshape(40, 30).float())
    assert (data.sample_shape, data.image_shape) == ((30,), (1, 1, 30))
    assert data.batch(torch.arange(4), torch.Generator()).shape == (4, 30)
    assert data.images("validation").shape == (4, 30) and data.train_mean.shape == (1, 1, 30)
    square = as_dataset(torch.zeros(20, 16))
    assert (square.sample_shape, square.image_shape) == ((16,), (1, 4, 4)), "shown as a picture"


def test_gaussian_data_keeps_its_numbers() -> None:
    x = torch.randn(40, 7, generator=torch.Generator().manual_seed(0))
    data = as_dataset(x, likelihood="gaussian")
    found = torch.cat([data.images(split) for split in ("train", "validation", "test")])
    assert as_set(found) == as_set(x)
    assert torch.allclose(data.train_mean.flatten(), data.images("train").mean(0), atol=1e-6)
    bytes_ = as_dataset(GREY, likelihood="gaussian")
    assert torch.equal(bytes_.images("test"), bytes_.test.float() / 255)
    with pytest.raises(UsageError, match="remove what is not finite"):
        as_dataset(torch.full((20, 3), torch.nan), likelihood="gaussian")


def test_parts_of_ones_own_are_taken_as_they_are() -> None:
    data = as_dataset(GREY, likelihood="logistic_mixture", validation=GREY[:3], test=torch.from_numpy(GREY[5:7]))
    assert torch.equal(data.validation, torch.from_numpy(GREY[:3, None]))
    assert torch.equal(data.test, torch.from_numpy(GREY[5:7, None])) and len(data.train) == 40
    shares = as_dataset(GREY, validation=0.25, test=0.5)
    assert [len(shares.train), len(shares.validation), len(shares.test)] == [10, 10, 20]
    mixed = as_dataset(BITS, test=GREY)
    assert mixed.dynamic, "one grey part makes all of them grey"
    with pytest.raises(UsageError, match=r"one shape .*data has images of \(6, 5, 1\), test has images of \(4, 5, 1\)"):
        as_dataset(GREY, test=GREY[:, :4])
    with pytest.raises(UsageError, match="shares of 0.1 for validation and 0.95 for test leave a part empty"):
        as_dataset(GREY, test=0.95)


def test_the_checksum_knows_values_and_shapes() -> None:
    sums = {as_dataset(given).checksum for given in (GREY, GREY[:, None], GREY[::-1], GREY.reshape(40, 5, 6))}
    assert len(sums) == 3, "an axis of one channel changes nothing"


def test_torch_datasets_are_read_with_their_labels() -> None:
    images, labels = torch.from_numpy(GREY), torch.arange(40)
    data = as_dataset(TensorDataset(images[:, None], labels))
    assert torch.equal(data.train, as_dataset(GREY).train)
    assert torch.equal(images[data.labels["train"], None], data.train)
    for alone in (images, images[:, None]):
        found = as_dataset(TensorDataset(alone))
        assert torch.equal(found.train, data.train) and found.labels == {}
    with pytest.raises(UsageError, match="without a length"):
        as_dataset(_Endless())
    with pytest.raises(UsageError, match=r"item 1 of data is uint8 \(2, 5\), and the first uint8 \(6, 5\)"):
        as_dataset(_Ragged())


class _Endless(IterableDataset[torch.Tensor]):
    def __iter__(self) -> Any:
        return iter([torch.zeros(3)])


class _Ragged(torch.utils.data.Dataset[Any]):
    def __len__(self) -> int:
        return 20

    def __getitem__(self, index: int) -> Any:
        return GREY[index, : 6 - 4 * index]


def test_a_torch_dataset_too_large_for_memory_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dvaepp.data.arrays.ARRAY_LIMIT", 39 * 30)
    with pytest.raises(UsageError, match="at most 39 are read into memory"):
        as_dataset(TensorDataset(torch.from_numpy(GREY)))


def test_paths_names_and_data_sets_are_taken(tmp_path: Path) -> None:
    np.save(tmp_path / "mine.npy", GREY)
    data = as_dataset(tmp_path / "mine.npy")
    assert data.name == "mine" and torch.equal(data.train, as_dataset(str(tmp_path / "mine.npy")).train)
    assert as_dataset(data) is data
    assert as_dataset("demo").name == "demo"


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ([torch.zeros(6, 5)] * 20, "data is a list; expected a tensor, .*: torch.stack or numpy.stack"),
        (None, "data is a NoneType; expected a tensor"),
        (
            DataLoader(TensorDataset(torch.zeros(20, 6, 5))),
            "data is a DataLoader; expected a tensor, .*give its .dataset",
        ),
        (
            GREY.astype(np.float32),
            r"values from 0 to 255; expected float32 in \[0, 1\]: divide by 255, or .* white=255",
        ),
        (GREY.astype(np.float32) / 127.5 - 1, r"values from -1 to 1; .*\(x \+ 1\) / 2"),
        (GREY.astype(np.int32) - 128, r"values from -128 to 127; .*: shift and scale them"),
        (GREY.astype(np.int32) * 3, r"values from 0 to 765; expected int32 in \[0, 255\]: .*white=765"),
        (GREY // 15, "values from 0 to 17, and 17 may be white or dark grey: say .* white=17 or white=255"),
        (GREY[0], r"data holds 6 images; a split into three parts needs at least 10"),
        (GREY[0, 0], r"shape \(5,\); expected \(n, height, width\), .*image\[None\]"),
        (GREY[None, None], r"shape \(1, 1, 40, 6, 5\)"),
        (np.zeros((20, 4, 8, 9), np.uint8), r"shape \(20, 4, 8, 9\); .*transparency"),
        (np.zeros((20, 1, 8, 3), np.uint8), r"channels may be the second or the last axis"),
        (GREY[:0], "holds no pixels"),
        (np.array(["a", "b"]), "values of type <U1"),
        (torch.zeros(20, 3, dtype=torch.complex64), "values of type complex64"),
        (torch.full((20, 4, 4), torch.nan), "values from nan to nan; .*remove what is not a number"),
    ],
)
def test_unfit_data_is_refused_with_the_remedy(given: Any, message: str) -> None:
    with pytest.raises(UsageError, match=message) as error:
        as_dataset(given)
    assert "\n" not in str(error.value)


def test_the_number_that_means_white_can_be_said() -> None:
    data = as_dataset(GREY // 15, white=17, likelihood="logistic_mixture")
    assert data.train.max() == 255 and as_set(everything(data)) == as_set(torch.from_numpy(GREY[:, None] // 15 * 15))
    assert "17 is white" in data.summary
    dark = as_dataset(GREY // 15, white=255)
    assert dark.train.max() == 17
    floats = as_dataset(GREY.astype(np.float32), white=255)
    assert torch.equal(floats.train, as_dataset(GREY).train)
    with pytest.raises(UsageError, match=r"expected uint8 in \[0, 9\]"):
        as_dataset(GREY // 15, white=9)


@pytest.mark.parametrize(("size", "shape"), [(12, (12, 12)), ("12", (12, 12)), ("12x8", (12, 8)), ((12, 8), (12, 8))])
def test_sizes_are_numbers_or_height_by_width(size: Any, shape: tuple[int, int]) -> None:
    data = as_dataset(RGB, likelihood="logistic_mixture", resize=size)
    assert data.image_shape == (3, *shape) and data.train.shape[1:] == (3, *shape)
    assert f"6x5 -> {shape[0]}x{shape[1]}" in data.summary


@pytest.mark.parametrize("size", ["12x", "x", "0", 0, -3, 1025, "3x4x5", "1e3", (3, -4), "٣"])
def test_other_sizes_are_refused(size: Any) -> None:
    with pytest.raises(UsageError, match="resize"):
        as_dataset(GREY, resize=size)


def test_resized_bits_are_grey() -> None:
    assert as_dataset(BITS, resize=4).dynamic
    assert not as_dataset(BITS, resize=(6, 5)).dynamic, "nothing changes"


def test_a_path_that_is_not_there_and_a_misspelt_name_are_told_apart_from_a_wrong_file(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"there is no file or folder .*mnits, and no data set .* mnist_static"):
        as_dataset("mnits")
    with pytest.raises(UsageError, match=r"there is no file or folder .*photos$"):
        as_dataset(tmp_path / "photos")
