"""Sheets of samples and reconstructions for a page, or the reason why there are none."""

import base64
from pathlib import Path
from typing import NamedTuple

from torch import Tensor

from dvaepp import data
from dvaepp.recipes.schema import Recipe
from dvaepp.reporting.images import png, reconstructed, sampled
from dvaepp.reporting.run import Run

PAIRS = 50
COLUMNS = 10


class Sheet(NamedTuple):
    """A picture as a data URI with its words, or only `missing`, a sentence; nothing at all needs no words."""

    uri: str = ""
    alt: str = ""
    caption: str = ""
    missing: str = ""


def samples(run: Run) -> Sheet:
    """From the prior; where latents vary below the global units, several images in a row share a sample of these."""
    if run.trained is None:
        return Sheet()  # the page has told why there is no model
    per_code = run.trained.model.images_per_code
    try:
        images = sampled(run.trained)
    except (ValueError, RuntimeError) as error:
        return Sheet(missing=f"No samples could be drawn: {' '.join(str(error).split())}.")
    shared = f" {per_code} in a row share a sample of the global units." if per_code > 1 else ""
    alt = f"{len(images)} images sampled from the model, {COLUMNS} to a row."
    return Sheet(_uri(images), alt, f"Mean images of samples from the prior.{shared}")


def reconstructions(run: Run, data_dir: Path | None, dataset: data.Dataset | None = None) -> Sheet:
    """Test images beside what the model makes of them. Nothing is downloaded for it."""
    if run.trained is None:
        return Sheet()
    name, path = run.recipe.data.name, run.recipe.data.path
    try:
        dataset = dataset_here(run.recipe, data_dir) if dataset is None else dataset
        x = dataset.images("test", data.subset(len(dataset.test), PAIRS))
        pairs = reconstructed(run.trained, x)
    except (OSError, ValueError, RuntimeError):
        why = f"the images at {path} could not be read" if path else f"the data set {name} could not be read here"
        hint = "" if path else f" `dvaepp data check {name}` says why, `dvaepp data fetch {name}` downloads it."
        return Sheet(missing=f"Reconstructions are left out: {why}.{hint}")
    caption = "Images of the test set, each with its reconstruction to the right."
    expected = run.trained.record.get("data_checksum")
    if expected and dataset.checksum != expected:
        caption += " These files are not those the run was trained on: their checksum differs."
    return Sheet(_uri(pairs), f"{len(x)} test images, each beside its reconstruction.", caption)


def dataset_here(recipe: Recipe, data_dir: Path | None) -> data.Dataset:
    """The data set of a recipe where it lies; nothing is downloaded."""
    if recipe.data.path is None:
        data.check(recipe.data.name, data_dir)  # `load` would download what is missing
    return recipe.data.load(data_dir)


def _uri(images: Tensor) -> str:
    return "data:image/png;base64," + base64.b64encode(png(images, COLUMNS)).decode()
