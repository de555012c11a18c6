"""What evaluations leave in a run directory: the best one of its model, and a line for each that was made.

    evaluation.json     the best evaluation of the model that the run has now
    evaluations.jsonl   every evaluation ever made there, in order

An evaluation belongs to one model: `checkpoint_sha256` is the digest of the model's file of tensors, as in the manifest
of its checkpoint. Of two evaluations of one model the better one is that of the test set. If this does not decide, it
is the one at the β of the recipe's evaluation, then that of more images, then that with more importance samples. If
they are alike in all of this the later one is kept.
"""

import json
import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from dvaepp.files import append_durably, write_durably

FILE, HISTORY = "evaluation.json", "evaluations.jsonl"
DIGEST = "checkpoint_sha256"
DEPTH = 20  # levels of JSON; an evaluation has four
Record = dict[str, Any]


class Evaluated(NamedTuple):
    """What identifies the model of an evaluation: the checkpoint's digest and record, and the recipe's seed and β."""

    digest: str
    record: Mapping[str, Any]
    seed: int
    beta: str = "inf"


class Kept(NamedTuple):
    """The evaluation that evaluation.json holds now, and a line that says why it does if there was another one."""

    evaluation: Record
    line: str = ""


def read(folder: Path) -> Record | None:
    """evaluation.json as it is; None where it is missing or no JSON object."""
    try:
        return parse((folder / FILE).read_bytes())
    except OSError:
        return None


def parse(text: bytes) -> Record | None:
    """A JSON object; None for anything else, and for an object nested deeper than any that this library writes."""
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) and _is_shallow(found) else None


def _is_shallow(value: Any) -> bool:
    """Whether JSON has at most `DEPTH` levels. A recursive walk could exceed Python's own limit on hostile files."""
    level = [value]
    for _ in range(DEPTH):
        parts = [each.values() if isinstance(each, dict) else each for each in level if isinstance(each, (dict, list))]
        level = [each for part in parts for each in part]
    return not level


def strict(value: Any) -> Any:
    """The value with None for numbers that are not finite, such as an infinite R-hat; JSON has no such numbers."""
    if isinstance(value, dict):
        return {key: strict(entry) for key, entry in value.items()}
    if isinstance(value, (list, tuple)):
        return [strict(entry) for entry in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def belongs(evaluation: Mapping[str, Any], model: Evaluated) -> bool:
    """Whether an evaluation is of this model.

    Evaluations from before version 0.2 have no digest. They are taken as the model's own if step, data and seed agree.
    """
    if DIGEST in evaluation:
        return bool(evaluation[DIGEST] == model.digest)
    expected = {
        "steps": model.record.get("step"),
        "data_checksum": model.record.get("data_checksum"),
        "dataset": model.record.get("dataset"),
        "seed": model.seed,
    }
    return all(name in evaluation and evaluation[name] == value for name, value in expected.items())


def keep(folder: Path, result: Record, model: Evaluated) -> Kept:
    """Add a result to the history, and make it evaluation.json unless a better one of the same model is there."""
    before = read(folder)
    history = folder / HISTORY
    # An evaluation from a time before there were histories is the first line of its history.
    new = [result] if before is None or history.exists() else [before, result]
    append_durably(history, _line_end(history) + b"".join(json.dumps(each).encode() + b"\n" for each in new))
    same = before is not None and belongs(before, model)
    if before is not None and same and _quality(before, model) > _quality(result, model):
        return Kept(before, f"{FILE} keeps the better one: {in_words(before)}; this one is in {HISTORY}")
    write(folder, result)
    if before is None:
        return Kept(result)
    reason = in_words(before) if same else f"one of another checkpoint ({in_words(before)})"
    return Kept(result, f"{FILE} now holds this one instead of {reason}, which is in {HISTORY}")


def write(folder: Path, evaluation: Record) -> None:
    write_durably(folder / FILE, (json.dumps(evaluation, indent=1) + "\n").encode())


def in_words(evaluation: Mapping[str, Any]) -> str:
    """The size of an evaluation in a few words, whatever its fields hold."""
    shown = {name: str(evaluation.get(name))[:20] for name in ("split", "num_images", "num_samples", "beta", "steps")}
    return (
        f"{shown['split']}, {shown['num_images']} images, K = {shown['num_samples']}, beta {shown['beta']}, "
        f"step {shown['steps']}"
    )


def _quality(evaluation: Mapping[str, Any], model: Evaluated) -> tuple[bool, bool, bool, float, float]:
    at_infinity = evaluation.get("beta") == "inf"
    return (
        is_number(evaluation.get("log_likelihood")),  # older versions also kept what was not finite
        evaluation.get("split") == "test",
        at_infinity == (model.beta == "inf"),
        _count(evaluation.get("num_images")),
        _count(evaluation.get("num_samples")),
    )


def _count(value: Any) -> float:
    return float(value) if is_number(value) else 0.0


def is_number(value: object) -> bool:
    """Whether a value is a finite number within the range of float; True and False do not count as numbers."""
    try:
        return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)
    except OverflowError:  # an integer of hundreds of digits
        return False


def _line_end(path: Path) -> bytes:
    """A line break if the last line has none, as after a power cut, so that the next line is not joined to it."""
    try:
        with path.open("rb") as file:
            file.seek(-1, os.SEEK_END)
            return b"" if file.read(1) == b"\n" else b"\n"
    except OSError:  # missing, or empty
        return b""
