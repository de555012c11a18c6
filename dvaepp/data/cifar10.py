"""CIFAR-10 (Krizhevsky 2009), 32x32 colour; validation = last 5000 of train.

The binary version: records of 3073 bytes, one label, then red, green and blue, each row by row. No pickle is involved.
"""

import numpy as np
import torch
from torch import Tensor

from dvaepp.data.base import Dataset, File
from dvaepp.data.formats import Pixels, class_numbers, pixels
from dvaepp.data.store import Found, contents


def _file(stem: str, stored: str, upstream: str) -> File:
    plain = File(f"cifar10/{stem}.bin", f"sha256:{upstream}")
    archive = File(
        "cifar10/cifar-10-binary.tar.gz",
        "md5:c32a1d4ab5d03f1284b67883e8d87530",
        ("https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz",),
        member=f"cifar-10-batches-bin/{stem}.bin",
    )
    return File(f"cifar10/{stem}.bin.xz", f"sha256:{stored}", others=(plain, archive))


FILES = [
    _file(
        "data_batch_1",
        "2d1a30628191542907614711f57a14ac5039674f7d1d145c42e44335609236c9",
        "cee916563c9f80d84e3cc88e17fdc0941787f1244f00a67874d45b261883ada5",
    ),
    _file(
        "data_batch_2",
        "3da65606bacc09f5f4d1cbed2b28e0fddd1c9f679261aef81ea3d91a9f8eec27",
        "a591ca11fa1708a91ee40f54b3da4784ccd871ecf2137de63f51ada8b3fa57ed",
    ),
    _file(
        "data_batch_3",
        "3f27679d7d361c2b8bb63669c031258c43be1087fc3e00400a6eaaeabf0e1694",
        "bbe8596564c0f86427f876058170b84dac6670ddf06d79402899d93ceea26f67",
    ),
    _file(
        "data_batch_4",
        "012f2a6f254aaf30e721fc47da1ea2b65d41cc26cd7958a99e48106c18fe5bd4",
        "014e562d6e23c72197cc727519169a60359f5eccd8945ad5a09d710285ff4e48",
    ),
    _file(
        "data_batch_5",
        "0ac68d78abdd8c8ccbc854823365dea7f1f4ba94e4b7e0539594c272f56b92b8",
        "755304fc0b379caeae8c14f0dac912fbc7d6cd469eb67a1029a08a39453a9add",
    ),
    _file(
        "test_batch",
        "599ee35c79c4e2151d9e4916f825c6163c62ab1a026da663e56e7fdf9a86bd87",
        "8e2eb146ae340b09e24670f29cabc6326dba54da8789dab6768acf480273f65b",
    ),
]

NUM_TRAIN = 45000
SHAPE = (3, 32, 32)
SIZES = (45000, 5000, 10000)


def _records(content: bytes) -> tuple[Pixels, Tensor]:
    records = np.frombuffer(content, np.uint8).reshape(-1, 3073)
    return pixels(records[:, 1:], 32, 32, channels=3), class_numbers(records[:, 0])


def read(found: list[Found]) -> Dataset:
    *batches, (test, test_labels) = [_records(content) for content in contents(found)]
    images = torch.cat([images for images, _ in batches])
    labels = torch.cat([labels for _, labels in batches])
    return Dataset(
        "cifar10",
        SHAPE,
        "logistic_mixture",
        train=images[:NUM_TRAIN],
        validation=images[NUM_TRAIN:],
        test=test,
        dynamic=False,
        labels={"train": labels[:NUM_TRAIN], "validation": labels[NUM_TRAIN:], "test": test_labels},
    )
