"""What the page says of a run before anything is computed."""

from pathlib import Path
from typing import Any

from dvaepp import runs
from dvaepp.evaluation.record import is_number
from dvaepp.models.trained import Trained


def facts(run: Path | str, trained: Trained) -> dict[str, Any]:
    """Names, the step and the evaluation of this very model, where the run has one."""
    try:
        found = runs.evaluation_of(run)
    except (OSError, ValueError):
        found = {}
    partition = found.get("log_partition")
    log_z = partition.get("value") if isinstance(partition, dict) else None
    return {
        "run": Path(run).resolve().name,
        "recipe": trained.recipe.name,
        "dataset": str(trained.record.get("dataset", trained.recipe.data.name)),
        "step": int(trained.record["step"]),
        "log_likelihood": _number(found.get("log_likelihood")),
        "standard_error": _number(found.get("standard_error")),
        "log_z": _number(log_z),
    }


def _number(value: Any) -> Any:
    """The value if it is a finite number: evaluation.json may have come from a stranger."""
    return value if is_number(value) else None
