"""Caltech-101 Silhouettes 28, split 1 (Marlin et al. 2010), as 1 - x: the silhouette is 1. Labels are 0..100."""

from dvaepp.data.base import Dataset, File
from dvaepp.data.formats import class_numbers, transposed
from dvaepp.data.matlab import matrices
from dvaepp.data.store import Found, contents

FILES = [
    File(
        "caltech101_silhouettes/caltech101_silhouettes_28_split1.mat",
        "sha256:eb6735e8d84b1850fabc5590124aab1755e90c9fd28123585324398405e1e42a",
        ("https://people.cs.umass.edu/~marlin/data/caltech101_silhouettes_28_split1.mat",),
    )
]

SHAPE = (1, 28, 28)
SIZES = (4100, 2264, 2307)


def read(found: list[Found]) -> Dataset:
    parts = {"train": "train", "validation": "val", "test": "test"}
    wanted = [f"{part}_{what}" for part in parts.values() for what in ("data", "labels")]
    variables = matrices(contents(found)[0], wanted)
    train, validation, test = [transposed(1 - variables[f"{part}_data"]) for part in parts.values()]
    labels = {split: class_numbers(variables[f"{part}_labels"]) - 1 for split, part in parts.items()}
    return Dataset("caltech", SHAPE, "bernoulli", train, validation, test, dynamic=False, labels=labels)
