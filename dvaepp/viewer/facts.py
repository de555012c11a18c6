"""What the page says of a run before anything is computed."""

from pathlib import Path
from typing import Any

from dvaepp import runs
from dvaepp.models.trained import Trained


def facts(run: Path | str, trained: Trained) -> dict[str, Any]:
    """Names, the step and the evaluation of this very model, where the run has one."""
    try:
        found = runs.evaluation_of(run)
    except (OSError, ValueError):
        found = {}
    partition = found.get("log_partition")
    return {
        "run": Path(run).resolve().name,
        "recipe": trained.recipe.name,
        "dataset": str(trained.record.get("dataset", trained.recipe.data.name)),
        "step": int(trained.record["step"]),
        "log_likelihood": found.get("log_likelihood"),
        "standard_error": found.get("standard_error"),
        "log_z": partition["value"] if partition else None,
    }
