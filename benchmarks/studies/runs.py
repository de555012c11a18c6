"""Runs that the studies train, kept in a folder and used again by the next call."""

from pathlib import Path

import dvaepp
from dvaepp import recipes


def trained(folder: Path, recipe: str, arguments: list[str], changes: dict[str, object]) -> Path:
    """The run directory of a recipe with changes; it is trained or resumed unless it is finished."""
    chosen = recipes.build(recipe, arguments, [f"{name}={value}" for name, value in changes.items()])
    sizes = "-".join(str(size) for size in chosen.model.groups)  # type: ignore[union-attr]
    run = folder / f"{recipe}-{sizes}-{chosen.training.steps}"
    finished = run / "finished"
    if not finished.exists():
        dvaepp.train(chosen, run, resume=(run / "checkpoints").exists())
        finished.touch()
    return run
