"""Tables of finished runs, from the JSON each run wrote itself: nothing is typed by hand.

A result is a folder with `recipe.json` and `evaluation.json`. Cells show log p(x) with its standard error; steps, share
of the recipe's own schedule, samples and seed stand beside it, since most runs here are shorter than the paper's.
"""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from dvaepp.errors import UsageError

PAPER_STEPS = {"table1": 2_000_000, "estimators": 2_000_000, "table2": 1_000_000}
EPOCHS = 400  # of Table 3 and App. I; ours, the paper names none
IMAGES = {"mnist_static": 50_000, "mnist_dynamic": 50_000, "omniglot": 23_000, "caltech": 4_100, "cifar10": 45_000}


class Result(NamedTuple):
    folder: str
    recipe: dict[str, Any]
    evaluation: dict[str, Any]

    @property
    def table(self) -> str:
        return str(self.recipe["name"]).split(".")[0]

    @property
    def architecture(self) -> str:
        model = self.recipe["model"]
        if model.get("kind") == "convolutional":
            return f"convolutional, {model['local_groups']} local groups of {model['local_channels']}"
        return f"{len(model['groups'])} {'nonlinear' if model['hidden'] else 'linear'}"

    @property
    def scale(self) -> float | None:
        """Steps as a share of the full schedule."""
        steps = self.recipe["training"]["steps"]
        if self.table in PAPER_STEPS:
            return float(steps / PAPER_STEPS[self.table])
        images = IMAGES.get(self.recipe["data"]["name"])
        return None if images is None else float(steps / (EPOCHS * (images // self.recipe["training"]["batch_size"])))


def read(folder: Path) -> list[Result]:
    """Every result below a folder, by name."""
    if not folder.is_dir():
        raise UsageError(f"{folder} is not a folder of results")
    found = []
    for path in sorted(folder.glob("*/evaluation.json")):
        recipe = json.loads((path.parent / "recipe.json").read_text())
        found.append(Result(path.parent.name, recipe, json.loads(path.read_text())))
    return found


def markdown(results: Sequence[Result]) -> str:
    """One table per table of the paper, best first."""
    parts = []
    for table in sorted({result.table for result in results}):
        rows = [result for result in results if result.table == table]
        parts += [f"## {table}", "", HEADER, RULE, *map(_row, sorted(rows, key=_order)), ""]
    return "\n".join(parts)


COLUMNS = (
    "recipe",
    "data set",
    "layers",
    "log p(x)",
    "±",
    "K",
    "images",
    "β",
    "log Z ±",
    "steps",
    "of schedule",
    "seed",
)
HEADER = f"| {' | '.join(COLUMNS)} |"
RULE = f"|{' --- |' * len(COLUMNS)}"


def _order(result: Result) -> tuple[str, str, float]:
    return result.evaluation["dataset"], result.architecture, -result.evaluation["log_likelihood"]


def _row(result: Result) -> str:
    e, partition, scale = result.evaluation, result.evaluation["log_partition"], result.scale
    cells = [
        result.recipe["name"],
        e["dataset"],
        result.architecture,
        f"{e['log_likelihood']:.2f}",
        f"{e['standard_error']:.2f}",
        str(e["num_samples"]),
        f"{e['num_images']} {e['split']}",
        str(e["beta"]),
        "" if partition is None else f"{partition['standard_error']:.3f}",
        str(e["steps"]),
        "" if scale is None else f"{scale:.3g}",
        str(e["seed"]),
    ]
    return f"| {' | '.join(cells)} |"
