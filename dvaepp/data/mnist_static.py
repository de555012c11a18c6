"""Static binarized MNIST (Salakhutdinov and Murray 2008; Larochelle and Murray 2011).

No labels. The rows of the test file are sorted by class: take subsets at random (`subset`).
"""

from dvaepp.data.base import Dataset, File
from dvaepp.data.formats import amat
from dvaepp.data.store import Found, contents

_URL = "http://www.cs.toronto.edu/~larocheh/public/datasets/binarized_mnist/"


def _file(part: str, stored: str, upstream: str) -> File:
    name = f"binarized_mnist_{part}.amat"
    plain = File(f"static_mnist/{name}", f"sha256:{upstream}", (_URL + name,))
    return File(f"static_mnist/{name}.gz", f"sha256:{stored}", others=(plain,))


FILES = [
    _file(
        "train",
        "af247bd6075cf9adc4715459dcd5f13eaa99a2c92d8d81379a05da94770b6c0e",
        "ad693b29f94c14277b095f5238ddefbbdaaae0939789dd2f4f0205278cee3e4d",
    ),
    _file(
        "valid",
        "533b71bc0198f4d73c54ae5fe6c96fc08dc3cf1b3fae24c5521dbc0452507e38",
        "1de3d397c40fe8eeb33dafd4099a1f665ec01e96d9be234aaeeac8a34930e2e2",
    ),
    _file(
        "test",
        "32a3c54d03504632bf9f131b4a148c7567aa6fc87da017049b044bdc14c2a0f2",
        "e6687bfea3f820c174f33b7865140b2a2dd2930ef786f35d45795fc193b5ab2c",
    ),
]

SHAPE = (1, 28, 28)
SIZES = (50000, 10000, 10000)


def read(found: list[Found]) -> Dataset:
    train, validation, test = [amat(content) for content in contents(found)]
    return Dataset("mnist_static", SHAPE, "bernoulli", train, validation, test, dynamic=False)
