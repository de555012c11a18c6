"""The picture of a model card: samples of the prior. Reconstructions would show images of somebody's data."""

import shutil
from pathlib import Path

from dvaepp import runs
from dvaepp.hub.files import buildable
from dvaepp.reporting.images import sampled, save_grid

NAME = "samples/samples.png"


def write_samples(run: Path, folder: Path) -> None:
    """Take the run's own picture of samples, or draw one; a model whose program is not here goes without."""
    if (run / NAME).is_file():
        (folder / "samples").mkdir()
        shutil.copyfile(run / NAME, folder / NAME)
    elif buildable(runs.read_recipe(folder)):
        save_grid(sampled(runs.load(folder)), 10, folder / NAME)
