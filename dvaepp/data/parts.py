"""Makes a data set of images: reads them by one rule, splits them, and says in one line what was done."""

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from dvaepp.data.base import SEEDS, Dataset, Likelihood, binarise_once, shuffled
from dvaepp.data.formats import Array, Pixels
from dvaepp.data.mapped import Mapped
from dvaepp.data.reading import Reading, Size, as_numbers, as_size, pieces, reading
from dvaepp.errors import UsageError

MINIMUM = 10  # a split of 80/10/10 then leaves no part empty


class Options(NamedTuple):
    """What the caller asks for: a likelihood, a size of images, and the number that means white."""

    likelihood: Likelihood = "bernoulli"
    resize: Size | None = None
    white: float | None = None

    @classmethod
    def of(
        cls, likelihood: Likelihood, resize: int | str | tuple[int, int] | None, white: float | int | None
    ) -> "Options":
        """Options in the forms that `as_dataset` takes."""
        return cls(likelihood, as_size(resize), None if white is None else float(white))


class Part(NamedTuple):
    """Images (n, height, width, channels) from one source, which `where` names in errors."""

    images: Array
    where: str
    labels: Tensor | None = None
    colour: int | None = None  # how many of them were in colour, where the images do not tell
    sizes: str = ""  # their sizes, where the images do not tell
    eight_bit: bool = False  # the format says that 255 is white
    flat: bool = False  # rows of numbers rather than pictures


class Whole(NamedTuple):
    """All images of a part in memory, and whether they have two values, 0 and 1."""

    pixels: Pixels
    binary: bool


def whole(part: Part, options: Options) -> Whole:
    """All images of a part in their order."""
    how = _reading([part], options)
    return Whole(torch.from_numpy(_converted(part.images, np.arange(len(part.images)), how)), how.binary)


def dataset(
    part: Part,
    options: Options,
    name: str,
    checksum: str,
    validation: float | int | Part = 0.1,
    test: float | int | Part = 0.1,
) -> Dataset:
    """A data set from images; `validation` and `test` are shares of them, drawn with a fixed seed, or their own."""
    others = [each for each in (validation, test) if isinstance(each, Part)]
    how = _reading([part, *others], options)
    orders = _orders(len(part.images), part.where, validation, test)
    parts = {"train": part, "validation": validation, "test": test}
    sources = {split: each if isinstance(each, Part) else part for split, each in parts.items()}
    dynamic = options.likelihood == "bernoulli" and not how.binary
    images = {
        split: _images(sources[split].images, orders.get(split), how, split if dynamic and split != "train" else None)
        for split in SEEDS
    }
    labels = {split: _labels(sources[split].labels, orders.get(split)) for split in SEEDS}
    return Dataset(
        name,
        how.shape(part.images),
        options.likelihood,
        **images,
        dynamic=dynamic,
        labels={split: found for split, found in labels.items() if found is not None},
        checksum=checksum,
        flat=part.flat,
        summary=_summary(part, options, how, images, own=[split for split in SEEDS if split not in orders]),
    )


def _reading(parts: list[Part], options: Options) -> Reading:
    shapes = {part.images.shape[1:]: part.where for part in parts}
    if len(shapes) > 1:
        told = ", ".join(f"{where} has images of {shape}" for shape, where in shapes.items())
        raise UsageError(f"the parts of a data set need images of one shape (height, width, channels): {told}")
    first, grey = parts[0], options.likelihood == "bernoulli"
    if options.likelihood == "gaussian" and first.images.dtype.kind == "f":
        return as_numbers([part.images for part in parts], first.where, options.resize)
    return reading([p.images for p in parts], first.where, options.white, first.eight_bit, grey, options.resize)


def _orders(size: int, where: str, validation: float | int | Part, test: float | int | Part) -> dict[str, Array]:
    """Which images of the first part go where; a part of its own is not named."""
    shares = {"validation": validation, "test": test}
    counts = {split: int(size * share + 1e-9) for split, share in shares.items() if not isinstance(share, Part)}
    left = size - sum(counts.values())
    if min([left, *counts.values()]) < 1:
        told = " and ".join(f"{shares[split]:g} for {split}" for split in counts)
        few = f"a split into three parts needs at least {MINIMUM}"
        raise UsageError(
            f"{where} holds {size} images; {few if size < MINIMUM else f'shares of {told} leave a part empty'}"
        )
    order = shuffled(size).numpy()
    cuts = np.cumsum([left, *counts.values()])[:-1]
    return dict(zip(("train", *counts), np.split(order, cuts), strict=True))


def _images(images: Array, order: Array | None, how: Reading, binarised: str | None) -> Tensor | Mapped:
    """The images that `order` names; those of the split `binarised` become bits by the seed of that split."""
    order = np.arange(len(images)) if order is None else order
    if isinstance(images, np.memmap):
        return Mapped(images, order, how, None if binarised is None else SEEDS[binarised])
    pixels = torch.from_numpy(_converted(images, order, how))
    return pixels if binarised is None else binarise_once(pixels, binarised)


def _converted(images: Array, order: Array, how: Reading) -> Array:
    """Bytes (n, channels, height, width) of the images that `order` names, made piece by piece."""
    pixels: Array = np.empty((len(order), *how.shape(images)), how.dtype)
    for place in pieces(images):
        chosen = order[place]  # a slice of the order, of as many images
        if len(chosen):
            pixels[place.start : place.start + len(chosen)] = how(images[chosen])
    return pixels


def _labels(labels: Tensor | None, order: Array | None) -> Tensor | None:
    return labels if labels is None or order is None else labels[torch.from_numpy(order)]


def _summary(part: Part, options: Options, how: Reading, images: Mapping[str, Tensor | Mapped], own: list[str]) -> str:
    """For example "read 1200 RGB images 48x64 -> 32x32 (height x width), colours kept, split 960/120/120"."""
    colour = part.colour if part.colour is not None else len(part.images) * (part.images.shape[3] == 3)
    number = len(part.images)
    kind = "binary images" if how.binary else "RGB images" if colour == number else "grey images"
    kind = kind if colour in (0, number) else f"images, {colour} of them RGB,"
    before, after = part.sizes or str(Size(*part.images.shape[1:3])), str(Size(*how.shape(part.images)[1:]))
    change = "" if before == after else f" -> {after}, the middle of each"
    told = [
        f"read {number} {kind} {before}{change} (height x width)",
        *_treatment(options, how, colour),
    ]
    if isinstance(part.images, np.memmap):
        told.append("mapped from the file")
    given = f", {' and '.join(own)} as given" if own else ""
    return ", ".join([*told, f"split {'/'.join(str(len(images[split])) for split in SEEDS)}{given}"])


def _treatment(options: Options, how: Reading, colour: int) -> list[str]:
    """What is done to levels and colours, with the other choice where something is lost."""
    told = [] if how.white == 255 or how.binary else [f"{how.white:g} is white"]
    if how.numbers:
        return ["numbers as they are"]
    if options.likelihood != "bernoulli":
        return [*told, "colours kept" if colour else "256 grey levels"]
    if colour:
        told.append("colours dropped (data.likelihood=logistic_mixture keeps them)")
    return told if how.binary else [*told, "binarised anew in each batch"]
