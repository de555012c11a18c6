"""The record of a finished cell: a JSON file that its run has written into `results/`."""

import hashlib
import json
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict

from dvaepp import runs
from dvaepp.errors import UsageError
from dvaepp.files import write_durably
from dvaepp.recipes.schema import Recipe
from dvaepp.reproduction import paper
from dvaepp.version import __version__


class Partition(BaseModel):
    model_config = ConfigDict(frozen=True, extra="ignore")
    value: float
    standard_error: float
    method: str


class Average(BaseModel):
    """What the evaluation of a run says of its averaged weights."""

    model_config = ConfigDict(frozen=True, extra="ignore")
    log_likelihood: float
    standard_error: float
    bits_per_dim: float
    log_partition: Partition | None


class Record(BaseModel):
    """One cell, trained and evaluated once."""

    model_config = ConfigDict(frozen=True, extra="forbid")
    cell: str
    seed: int
    size: str = "paper"
    scale: float
    steps: int
    num_samples: int
    num_images: int
    split: str
    beta: float | list[float] | str
    log_likelihood: float
    standard_error: float
    bits_per_dim: float
    log_partition: Partition | None
    dataset: str
    data_checksum: str
    recipe_sha256: str
    recipe: dict[str, Any]
    code_version: str
    cpu_seconds: float | None = None
    selected_from: list[dict[str, Any]] = []
    validation: list[dict[str, Any]] = []
    note: str = ""
    average: Average | None = None

    @property
    def file(self) -> str:
        return file_name(self.cell, self.size, self.scale, self.seed)


def file_name(cell: str, size: str, scale: float, seed: int) -> str:
    parts = [cell.replace("/", "."), *(["size=small"] if size == "small" else []), f"scale={scale:.3g}", f"seed={seed}"]
    return f"{'.'.join(parts)}.json"


def digest(recipe: Recipe) -> str:
    return hashlib.sha256(json.dumps(recipe.model_dump(mode="json"), sort_keys=True).encode()).hexdigest()


# Fields that evaluation.json has under the same names.
EVALUATED = ["num_samples", "num_images", "split", "beta", "log_likelihood", "standard_error", "bits_per_dim"]
EVALUATED += ["log_partition", "dataset", "data_checksum"]


def of_run(
    folder: Path, cell: str, size: str, full_steps: int, selected_from: list[dict[str, Any]] | None = None
) -> Record:
    """The record of a run that was trained and evaluated, from the JSON in its folder."""
    recipe = runs.read_recipe(folder)
    evaluation = runs.evaluation_of(folder)
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    kept = ("step", "validation_bound", "validation_kl", "validation_log_likelihood", "log_z")
    validation = [{key: line[key] for key in kept if key in line} for line in lines if "validation_bound" in line]
    return Record(
        cell=cell,
        seed=recipe.training.seed,
        size=size,
        scale=recipe.training.steps / full_steps,
        steps=evaluation["steps"],
        average=evaluation.get("average"),
        **{name: evaluation[name] for name in EVALUATED},
        recipe_sha256=digest(recipe),
        recipe=recipe.model_dump(mode="json"),
        code_version=code_version(),
        cpu_seconds=max((line["cpu_seconds"] for line in lines if "cpu_seconds" in line), default=None),
        selected_from=selected_from or [],
        validation=validation,
    )


def code_version() -> str:
    """The version, and in a checkout its commit."""
    root = Path(__file__).resolve().parents[2]
    if (root / ".git").exists():
        command = ["git", "-C", str(root), "rev-parse", "--short", "HEAD"]
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode == 0:
            return f"{__version__}+{done.stdout.strip()}"
    return __version__


def write(folder: Path, record: Record) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / record.file
    write_durably(path, (record.model_dump_json(indent=1) + "\n").encode())
    return path


def read(folder: Path, table: str | None = None, say: Callable[[str], None] | None = None) -> list[Record]:
    """Every record of a table's cells in a folder, in order of names.

    A file that is no record is named to `say` and left out, so that one broken file does not hide the others. Without
    `say` it is an error.
    """
    found = []
    names = None if table is None else {cell.name for cell in paper.cells(table)}
    for path in sorted(folder.glob("*.json")) if folder.is_dir() else []:
        try:
            record = Record.model_validate_json(path.read_text())
        except (OSError, ValueError) as error:  # a ValidationError, or text that is no UTF-8, are ValueErrors
            reason = " ".join(str(error).split())[:150]
            problem = f"{path} is no record of a cell: {reason}; remove it, and its cell runs again"
            if say is None:
                raise UsageError(problem) from None
            say(f"{problem}; left out here")
            continue
        if names is None or record.cell in names:
            found.append(record)
    return found
