"""What a run directory says of itself, whatever it lacks: a run may be young, still writing, or stopped midway."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from dvaepp.evaluation import record as evaluations
from dvaepp.evaluation.record import is_number, parse
from dvaepp.models.trained import Trained
from dvaepp.priors.base import BoltzmannPrior
from dvaepp.recipes.schema import Recipe

Record = dict[str, Any]


class Run(NamedTuple):
    """The files of a run and, where it can be loaded, its model.

    `problems` holds a sentence for each thing that is missing or damaged, by the part it belongs to: "metrics",
    "evaluation" or "model". `history` has every evaluation that was ever made in the folder.
    """

    name: str
    recipe: Recipe
    training: list[Record]
    validation: list[Record]
    evaluation: Record | None
    trained: Trained | None
    problems: dict[str, str]
    history: list[Record]

    @property
    def exported(self) -> bool:
        """Whether this is an exported model: what only training needs, and the metrics, stayed in its run."""
        return self.trained is not None and "progress" not in self.trained.record

    @property
    def prior(self) -> BoltzmannPrior | None:
        return None if self.trained is None else self.trained.model.boltzmann


class Series(NamedTuple):
    """A number or a list of numbers over training: steps (records,), values (records,) or (records, entries)."""

    steps: np.ndarray
    values: np.ndarray


def read(folder: Path, recipe: Recipe, load: Callable[[Callable[[str], None]], Trained]) -> Run:
    """`load` is called for the model: it may fail, or say what it found wrong."""
    problems: dict[str, str] = {}
    training, validation = _metrics(folder / "metrics.jsonl", problems)
    trained: Trained | None = None
    said: list[str] = []
    try:
        trained = load(said.append)
    except (OSError, ValueError, RuntimeError, KeyError) as error:
        said = [f"The model could not be loaded: {' '.join(str(error).split())}"]
    name = folder.resolve().name
    if said:
        text = ". ".join(said)
        # a page is there to be shown to others: the name of the folder, not the way to it
        problems["model"] = f"{text.replace(str(folder), name) if len(folder.parts) > 1 else text}."
    evaluation = _evaluation(folder, recipe, trained, problems)
    run = Run(name, recipe, training, validation, evaluation, trained, problems, _history(folder))
    if run.exported and not (training or validation):
        problems.pop("metrics", None)  # an export leaves them behind
    return run


WITH_METRICS = "Curves of training, the KL of each group and active units are shown as soon as it holds some."


def _metrics(path: Path, problems: dict[str, str]) -> tuple[list[Record], list[Record]]:
    """Training and validation records by step. A step met twice, as after a resumption, counts as last written."""
    if not path.is_file():
        problems["metrics"] = f"There are no metrics yet: metrics.jsonl is missing. {WITH_METRICS}"
        return [], []
    training: dict[int, Record] = {}
    validation: dict[int, Record] = {}
    lines = [line for line in path.read_bytes().splitlines() if line.strip()]
    damaged = []
    for number, line in enumerate(lines, 1):
        record = parse(line)
        if record is None or not is_number(record.get("step")):
            damaged.append(number)
            continue
        (validation if "validation_bound" in record else training)[int(record["step"])] = record
    if damaged == [len(lines)]:
        problems["metrics"] = "The last line of metrics.jsonl is incomplete and was left out."
    elif damaged:
        problems["metrics"] = f"{len(damaged)} of {len(lines)} lines of metrics.jsonl are damaged and were left out."
    elif not lines:
        problems["metrics"] = f"There are no metrics yet: metrics.jsonl is empty. {WITH_METRICS}"
    return [training[step] for step in sorted(training)], [validation[step] for step in sorted(validation)]


NUMBERS = ("log_likelihood", "standard_error", "bits_per_dim", "num_images", "num_samples", "steps", "beta")
LONGEST_HISTORY = 50  # evaluations
TEXTS = ("split", "dataset", "data_checksum", "recipe", "beta", evaluations.DIGEST)


def _evaluation(folder: Path, recipe: Recipe, trained: Trained | None, problems: dict[str, str]) -> Record | None:
    """The evaluation of the model on the page; that of any other is left out, and `problems` tells so."""
    if not (folder / evaluations.FILE).is_file():
        problems["evaluation"] = "This run has not been evaluated yet."
        return None
    whole = evaluations.read(folder) or {}
    found = _of_known_kinds(whole)
    if "log_likelihood" not in found or ("standard_error" not in found and whole.get("standard_error", 0) is not None):
        problems["evaluation"] = "evaluation.json is damaged and was left out."
        return None
    if trained is None:
        problems["evaluation"] = "Without the model it could not be checked that this evaluation is of this model."
        return found
    record = trained.record
    model = evaluations.Evaluated(str(record.get(evaluations.DIGEST)), record, recipe.training.seed)
    if not evaluations.belongs(whole, model):
        theirs = _checkpoint(found.get("steps"), found.get(evaluations.DIGEST))
        ours = _checkpoint(record.get("step"), model.digest)
        problems["evaluation"] = (
            f"evaluation.json is of another model, {theirs}, and was left out: this page shows {ours}."
        )
        return None
    if evaluations.DIGEST not in whole:
        problems["evaluation"] = (
            "This evaluation was written without the digest of its model; step, data and seed are those of this one."
        )
    return found


def _history(folder: Path) -> list[Record]:
    """The last evaluations ever made here, in their order; lines that are no evaluations are passed over."""
    path = folder / evaluations.HISTORY
    lines = path.read_bytes().splitlines()[-LONGEST_HISTORY:] if path.is_file() else []
    found = [_of_known_kinds(parse(line) or {}) for line in lines]
    return [evaluation for evaluation in found if "log_likelihood" in evaluation]


def _checkpoint(step: Any, digest: str | None) -> str:
    return f"the checkpoint of step {step}" + (f" (sha256 {digest[:12]})" if digest else "")


def _of_known_kinds(whole: Record) -> Record:
    """The fields that a page shows, where they are what they should be: a file may hold anything."""
    found = {key: whole[key] for key in NUMBERS if is_number(whole.get(key))}
    found |= {key: whole[key] for key in TEXTS if isinstance(whole.get(key), str)}
    return {**found, "log_partition": _partition(whole.get("log_partition"))}


def _partition(found: Any) -> Record | None:
    if not isinstance(found, dict) or not all(is_number(found.get(key)) for key in ("value", "standard_error")):
        return None
    given = found.get("diagnostics")
    diagnostics: Record = given if isinstance(given, dict) else {}
    warnings = diagnostics.get("warnings")
    return {
        "value": found["value"],
        "standard_error": found["standard_error"],
        "method": found["method"] if isinstance(found.get("method"), str) else "",
        "diagnostics": {
            **{key: value for key, value in diagnostics.items() if is_number(value)},
            "warnings": [line for line in warnings if isinstance(line, str)] if isinstance(warnings, list) else [],
        },
    }


def series(records: Sequence[Record], key: str) -> Series:
    """Where `key` is a finite number."""
    pairs = [(record["step"], record[key]) for record in records if is_number(record.get(key))]
    return Series(np.array([step for step, _ in pairs], float), np.array([value for _, value in pairs], float))


def vectors(records: Sequence[Record], key: str) -> Series:
    """Where `key` is a list of finite numbers, as many as in the last record."""
    lists = [(record["step"], record[key]) for record in records if isinstance(record.get(key), list)]
    width = len(lists[-1][1]) if lists else 0
    good = [(step, entries) for step, entries in lists if len(entries) == width and all(map(is_number, entries))]
    return Series(
        np.array([step for step, _ in good], float),
        np.array([entries for _, entries in good], float).reshape(len(good), width),
    )


def last_step(run: Run) -> int:
    return max((int(record["step"]) for record in (*run.training, *run.validation)), default=0)
