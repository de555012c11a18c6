"""Which cells to run, with which recipes, and where: decided before anything is trained."""

import fnmatch
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict

from dvaepp import recipes
from dvaepp.errors import UsageError
from dvaepp.recipes.schema import Recipe
from dvaepp.reproduction import paper, records
from dvaepp.reproduction.paper import Cell


class Task(BaseModel):
    """One run of a cell, which workers get as JSON; it is evaluated too, unless it is one of several candidates."""

    model_config = ConfigDict(frozen=True)
    cell: str
    size: str
    full_steps: int
    recipe: Recipe
    changes: tuple[str, ...] = ()
    folder: Path  # of the run
    results: Path  # where the record goes
    samples: int | None = None
    data_dir: Path | None = None
    device: str = "cpu"
    evaluate: bool = True
    selected_from: list[dict[str, Any]] = []

    @property
    def record_file(self) -> Path:
        seed = self.recipe.training.seed
        return self.results / records.file_name(
            self.cell, self.size, self.recipe.training.steps / self.full_steps, seed
        )

    @property
    def name(self) -> str:
        """As it is shown: the cell, its seed, and what a candidate changes."""
        seed = f"seed={self.recipe.training.seed}"
        return " ".join([self.cell, seed, *self.changes])


def chosen_cells(table: str, patterns: Sequence[str]) -> list[Cell]:
    """Cells whose name contains any of the patterns, which may hold * and ?; all without patterns."""
    cells = paper.cells(table)
    if not patterns:
        return cells
    found = [cell for cell in cells if any(fnmatch.fnmatch(cell.name, f"*{pattern}*") for pattern in patterns)]
    if not found:
        raise UsageError(f"no cell of {table} matches {' '.join(patterns)!r}; its cells are like {cells[0].name}")
    return found


def tasks(
    cells: Sequence[Cell],
    *,
    seeds: Sequence[int],
    scale: float,
    size: str,
    select: bool,
    root: Path,
    results: Path,
    **options: Any,
) -> list[Task]:
    """The tasks of the given cells, including those that have been done already."""
    if not 0 < scale <= 1:
        raise UsageError(f"--scale must be in (0, 1], got {scale}")
    if not seeds:
        raise UsageError("--seeds needs a number, for example --seeds 0 1")
    made = []
    for cell in cells:
        arguments = [*cell.arguments, *(["size=small"] if size == "small" else [])]
        full_steps = recipes.build(cell.recipe, arguments).training.steps
        steps = max(1, round(full_steps * scale))
        for seed in dict.fromkeys(seeds):  # one that is given twice would be trained by two workers in one folder
            recipe = recipes.build(cell.recipe, arguments, [f"training.steps={steps}", f"training.seed={seed}"])
            for changes in paper.grid(cell) if select else [()]:
                stem = records.file_name(cell.name, size, scale, seed).removesuffix(".json")
                folder = root / ".".join([stem, *changes])
                made.append(
                    Task(
                        cell=cell.name,
                        size=size,
                        full_steps=full_steps,
                        recipe=recipes.override(recipe, changes),
                        changes=changes,
                        folder=folder,
                        results=results,
                        evaluate=not select,
                        **options,
                    )
                )
    return made
