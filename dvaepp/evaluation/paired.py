"""Log-likelihoods image by image, and the difference of two models on the same images.

    evaluation.npz   beside evaluation.json: `indices` of the images, `log_likelihood` of each, `average_log_likelihood`
                     under the averaged weights where the run has them, and the evaluation itself as JSON

Two models that were evaluated on the same images are compared image by image. Most of the spread is between images and
drops out of the differences, so that a tenth of a nat can be seen where the two means have error bars of half a nat.
The error of a model's log Z shifts all its images alike and does not average out. It is added to the error bar.
"""

import io
import json
import math
import zlib
from pathlib import Path
from typing import Any, NamedTuple
from zipfile import BadZipFile

import numpy as np
from numpy.typing import NDArray

from dvaepp.errors import UsageError
from dvaepp.files import write_durably

FILE = "evaluation.npz"
SAME = ("dataset", "data_checksum", "split", "num_images")
Array = NDArray[np.float64]


class PerImage(NamedTuple):
    """An evaluation with the log-likelihoods of its images, by the name of the weights: "trained" or "averaged"."""

    evaluation: dict[str, Any]
    indices: NDArray[np.int64]
    log_likelihood: dict[str, Array]


class Difference(NamedTuple):
    """The mean over images of one model's log-likelihood minus another's, and its standard error in nats.

    `image_error` is the part of it that comes from the choice of images.
    """

    value: float
    standard_error: float
    image_error: float
    num_images: int


def write(folder: Path, evaluation: dict[str, Any], indices: Any, log_likelihood: dict[str, Any]) -> None:
    """Write the file beside evaluation.json, whole or not at all."""
    names = {"trained": "log_likelihood", "averaged": "average_log_likelihood"}
    arrays: dict[str, Any] = {names[key]: np.asarray(each, dtype=np.float64) for key, each in log_likelihood.items()}
    arrays |= {"indices": np.asarray(indices, dtype=np.int64), "evaluation": np.array(json.dumps(evaluation))}
    buffer = io.BytesIO()
    np.savez(buffer, **arrays)
    write_durably(folder / FILE, buffer.getvalue())


def read(folder: Path | str) -> PerImage:
    """The log-likelihoods of single images from the last evaluation that a run has kept."""
    path = Path(folder) / FILE
    try:
        with path.open("rb") as opened, np.load(opened, allow_pickle=False) as file:
            found = {"trained": file["log_likelihood"]}
            if "average_log_likelihood" in file:
                found["averaged"] = file["average_log_likelihood"]
            return PerImage(json.loads(str(file["evaluation"])), file["indices"], found)
    except FileNotFoundError:
        raise UsageError(f"{folder} has no {FILE}: dvaepp evaluate {folder} makes one") from None
    except (OSError, ValueError, KeyError, EOFError, BadZipFile, zlib.error, TypeError) as error:
        raise OSError(f"{path} cannot be read ({error}): dvaepp evaluate {folder} makes a new one") from None


def difference(mine: PerImage, other: PerImage, weights: str = "trained") -> Difference:
    """`mine` with these weights minus `other` with its trained ones, on the images of both, which must be the same.

    >>> difference(read("runs/relaxed"), read("runs/table2"))
    """
    for name in SAME:
        if mine.evaluation.get(name) != other.evaluation.get(name):
            pair = f"{mine.evaluation.get(name)} and {other.evaluation.get(name)}"
            raise UsageError(f"the two were evaluated on different images ({name} {pair}): evaluate both alike")
    if not np.array_equal(mine.indices, other.indices):
        raise UsageError("the two were evaluated on different images: evaluate both with the same --limit")
    gaps = mine.log_likelihood[weights] - other.log_likelihood["trained"]
    image_error = float(gaps.std(ddof=1) / math.sqrt(len(gaps))) if len(gaps) > 1 else math.inf
    shared = math.hypot(_log_z_error(mine, weights), _log_z_error(other, "trained"))
    return Difference(float(gaps.mean()), math.hypot(image_error, shared), image_error, len(gaps))


def _log_z_error(one: PerImage, weights: str) -> float:
    part = one.evaluation if weights == "trained" else one.evaluation["average"]
    return float(part["log_partition"]["standard_error"]) if part["log_partition"] else 0.0
