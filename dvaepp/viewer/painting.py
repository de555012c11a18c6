"""What a painted image means to a model: x and the pixels that are seen, from one letter per pixel."""

import torch
from torch import Tensor

from dvaepp.errors import UsageError
from dvaepp.models.base import Model
from dvaepp.viewer.library import Library
from dvaepp.viewer.requests import Paint

LEVELS = {"bernoulli": (0.0, 1.0), "logistic_mixture": (-1.0, 1.0)}  # black and white, by what a model reads


def painted(asked: Paint, model: Model, library: Library | None) -> tuple[Tensor, Tensor]:
    """x and the mask of its seen pixels, each (1, channels, height, width)."""
    channels, height, width = model.image_shape
    if len(asked.pixels) != height * width:
        raise UsageError(f"pixels must have {height * width} letters, got {len(asked.pixels)}")
    if "?" not in asked.pixels:
        raise UsageError("no pixel is hidden: hide some for the model to fill in")
    letters = torch.tensor(list(asked.pixels.encode()), dtype=torch.int64, device="cpu").reshape(1, 1, height, width)
    letters = letters.expand(1, channels, height, width)
    x = _ground(asked, model, library)
    for letter, level in zip("01", _levels(asked.pixels, model), strict=True):
        x = torch.where(letters == ord(letter), level, x)
    return x, letters != ord("?")


def _ground(asked: Paint, model: Model, library: Library | None) -> Tensor:
    """What is painted on: an image of the data set where pixels of one are kept, otherwise nothing."""
    if "=" not in asked.pixels:
        return torch.zeros(1, *model.image_shape, dtype=torch.float32, device="cpu")
    images = 0 if library is None else len(library)
    if library is None or asked.of is None or asked.of >= images:
        raise UsageError(f"of must name one of the {images} images of the data set, got {asked.of}")
    return library.images(torch.tensor([asked.of], dtype=torch.int64, device="cpu")).reshape(1, *model.image_shape)


def _levels(pixels: str, model: Model) -> tuple[float, float]:
    if model.reads not in LEVELS and ("0" in pixels or "1" in pixels):
        raise UsageError("this model reads numbers that have no black and white: hide pixels of a data image instead")
    return LEVELS.get(model.reads, (0.0, 0.0))
