"""A small data set and small recipes for tests of training."""

from pathlib import Path

import numpy as np

from dvaepp import recipes
from dvaepp.recipes.schema import Recipe

SMALL_IMAGES = {
    "model.image_size": "8",
    "model.down1": '["4d", "4d"]',
    "model.down2": '["4d"]',
    "model.upsample": '["4u"]',
    "model.upsamples": '[["4u"], ["4u"]]',
    "model.local_groups": "3",
}


def stripes(folder: Path) -> Path:
    """600 images of 6 x 6 pixels: one of four stripes with a little noise."""
    rng = np.random.default_rng(0)
    kinds = np.zeros((4, 6, 6), dtype=np.uint8)
    kinds[0, :, :3] = kinds[1, :, 3:] = kinds[2, :3] = kinds[3, 3:] = 1
    x = kinds[rng.integers(0, 4, 600)] ^ (rng.random((600, 6, 6)) < 0.03)
    path = folder / "stripes.npy"
    np.save(path, x.astype(np.uint8), allow_pickle=False)
    return path


def halves(folder: Path) -> Path:
    """400 images of 6 x 6 pixels: the left or the right half, with a little noise."""
    rng = np.random.default_rng(0)
    kinds = np.zeros((2, 6, 6), dtype=np.uint8)
    kinds[0, :, :3] = kinds[1, :, 3:] = 1
    path = folder / "halves.npz"
    np.savez(path, images=kinds[rng.integers(0, 2, 400)] ^ (rng.random((400, 6, 6)) < 0.05))
    return path


def recipe(images: Path, name: str = "table2.rbm", steps: int = 20, **changes: object) -> Recipe:
    """A recipe of any table cut down to `stripes`; `changes` are fields, with __ for the dot."""
    settings: dict[str, object] = {
        "data.path": images,
        "training.steps": steps,
        "training.validate_every": 0.5,
        "training.validation_samples": 5,
        "training.batch_size": 10,
        "training.validation_images": 20,
        "chains.num_chains": 20,
        "chains.num_sweeps": 3,
    }
    if name.startswith("table3"):
        arguments = ["size=small"]
        settings |= SMALL_IMAGES
    elif name.startswith("table2"):
        arguments = ["layers=2", "linear=false"]
        settings |= {"model.groups": "[4,4]", "model.hidden": "[12]"}
    else:
        arguments = ["linear=false"]
        settings |= {"model.groups": "[8]", "model.hidden": "[12]"}
    settings |= {key.replace("__", "."): value for key, value in changes.items()}
    return recipes.build(name, arguments, [f"{key}={value}" for key, value in settings.items()])


def quiet(line: str) -> None:
    """Say nothing."""
