"""MNIST (LeCun et al. 1998), binarised anew each time an image is drawn; validation = last 10000 of train."""

from dvaepp.data import idx
from dvaepp.data.base import Dataset, File, grey_dataset
from dvaepp.data.formats import class_numbers, pixels
from dvaepp.data.store import Found, contents

_MIRRORS = (
    "https://ossci-datasets.s3.amazonaws.com/mnist/",
    "https://storage.googleapis.com/cvdf-datasets/mnist/",
    "http://yann.lecun.com/exdb/mnist/",
)


def _file(name: str, stored: str, unpacked: str) -> File:
    plain = File(f"mnist/{name}", f"sha256:{unpacked}")
    urls = tuple(f"{mirror}{name}.gz" for mirror in _MIRRORS)
    return File(f"mnist/{name}.gz", f"sha256:{stored}", urls, others=(plain,))


FILES = [
    _file(
        "train-images-idx3-ubyte",
        "440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609",
        "ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db",
    ),
    _file(
        "train-labels-idx1-ubyte",
        "3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c",
        "65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5",
    ),
    _file(
        "t10k-images-idx3-ubyte",
        "8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6",
        "0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7",
    ),
    _file(
        "t10k-labels-idx1-ubyte",
        "f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6",
        "ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2",
    ),
]

NUM_TRAIN = 50000
SHAPE = (1, 28, 28)
SIZES = (50000, 10000, 10000)


def read(found: list[Found]) -> Dataset:
    images, labels, test, test_labels = [idx.parse(content) for content in contents(found)]
    return grey_dataset(
        "mnist_dynamic",
        train=pixels(images[:NUM_TRAIN], 28, 28),
        validation=pixels(images[NUM_TRAIN:], 28, 28),
        test=pixels(test, 28, 28),
        labels={
            "train": class_numbers(labels[:NUM_TRAIN]),
            "validation": class_numbers(labels[NUM_TRAIN:]),
            "test": class_numbers(test_labels),
        },
    )
