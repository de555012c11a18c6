"""The picture of a model card: samples of the prior. Reconstructions would show images of somebody's data."""

import shutil
from pathlib import Path

import torch

from dvaepp import runs
from dvaepp.hub.files import buildable
from dvaepp.reporting.images import save_grid

NAME = "samples/samples.png"


def write_samples(run: Path, folder: Path) -> None:
    """Take the run's own picture of samples, or draw one; a model whose program is not here goes without."""
    if (run / NAME).is_file():
        (folder / "samples").mkdir()
        shutil.copyfile(run / NAME, folder / NAME)
    elif buildable(runs.read_recipe(folder)):
        trained = runs.load(folder)
        per_code = trained.model.images_per_code
        images = trained.sample(100 // per_code, torch.Generator("cpu").manual_seed(0), per_code)
        save_grid(trained.shown(images), 10, folder / NAME)
