"""OMNIGLOT at 28x28 (Lake et al. 2015; file of Burda et al. 2016), binarised anew each time an image is drawn.

Validation = last 1345 training rows. Without `chardata.mat` a stand-in made from the same drawings is read, and the
data set says so in its name: its numbers do not compare with published ones. Labels are alphabets, 0..49.
"""

import numpy as np

from dvaepp.data.base import Dataset, File, grey_dataset
from dvaepp.data.formats import Array, class_numbers, transposed
from dvaepp.data.matlab import matrices
from dvaepp.data.store import Found, contents

_STAND_IN = File(
    "omniglot/omniglot28_standin.mat",
    "sha256:d1a6d1a4d01a6b43e88168acd64a7c8f810065e94ab3c52fc193ca5cb36ee3e8",
    stand_in=True,
)

FILES = [
    File(
        "omniglot/chardata.mat",
        "md5:21ecaf34373511aa7691cf2e0802aa3d",  # the only published checksum
        ("https://github.com/yburda/iwae/raw/master/datasets/OMNIGLOT/chardata.mat",),
        others=(_STAND_IN,),
    )
]

NUM_TRAIN = 23000
SHAPE = (1, 28, 28)
SIZES = (23000, 1345, 8070)


def read(found: list[Found]) -> Dataset:
    variables = matrices(contents(found)[0], ["data", "testdata", "target", "testtarget"])
    # Grey values are kept in steps of 1/255, as both files store them: binarisation then needs bytes only.
    train, test = [transposed(_grey(variables[key].T)) for key in ("data", "testdata")]
    labels, test_labels = [class_numbers(variables[key].argmax(axis=0)) for key in ("target", "testtarget")]
    return grey_dataset(
        "omniglot (stand-in)" if found[0].form.stand_in else "omniglot",
        train=train[:NUM_TRAIN],
        validation=train[NUM_TRAIN:],
        test=test,
        labels={"train": labels[:NUM_TRAIN], "validation": labels[NUM_TRAIN:], "test": test_labels},
    )


def _grey(values: Array) -> Array:
    if not (values.min() >= 0 and values.max() <= 1):  # also refuses nan
        raise ValueError(f"it has grey values from {values.min()} to {values.max()}; expected [0, 1]")
    return np.rint(values * 255.0)
