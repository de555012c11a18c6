"""Trained models that come with the library. A folder of this one is a model, and the folder's name is the model's.

    mnist-rbm            a one-layer VAE with an RBM prior, trained for the full schedule of Table 2
    mnist-rbm-2layers    the same with two layers, trained for 75 % of the schedule

`dvaepp models` and docs/models.md show them with the numbers of their own evaluation.json.
"""

import json
from pathlib import Path
from typing import Any

from dvaepp.errors import UsageError
from dvaepp.files import expanded

HERE = Path(__file__).parent


def names() -> list[str]:
    return sorted(path.parent.name for path in HERE.glob("*/recipe.json"))


def folder(run_or_name: Path | str) -> Path:
    """The folder of a run or of a shipped model. A path that exists wins over a name."""
    path = expanded(run_or_name)
    if path.exists():
        return path
    if str(run_or_name) in names():
        return HERE / run_or_name
    raise UsageError(
        f"{run_or_name} is not a run directory: there is no such folder, and no model of this name comes with dvaepp "
        f"(those are {', '.join(names())})"
    )


def own_folder(run_or_name: Path | str) -> Path:
    """The folder of a run, where what is asked for lies only in runs of one's own."""
    found = folder(run_or_name)
    if is_shipped(found):
        raise UsageError(
            f"{found.name} comes with dvaepp, without its log-likelihoods image by image: "
            f"dvaepp export {found.name} --out DIR, then dvaepp evaluate DIR"
        )
    return found


def is_shipped(run_dir: Path | str) -> bool:
    """Whether a folder is one of the library's own, to which nothing is written: it may be read-only, or shared."""
    return Path(run_dir).resolve().parent == HERE.resolve()


def evaluation(name: str) -> dict[str, Any]:
    """What a shipped model's evaluation.json says; read without torch, so that the list of models is quick."""
    found: dict[str, Any] = json.loads((HERE / name / "evaluation.json").read_text())
    return found


def in_words(name: str) -> str:
    """Data, recipe and log p(x) with its error bar in one line, all from the model's evaluation.json."""
    found = evaluation(name)
    number = f"log p(x) = {found['log_likelihood']:.2f} ± {found['standard_error']:.2f} nats"
    return (
        f"{found['dataset']}, {found['recipe']}, step {found['steps']}: {number} "
        f"({found['split']}, {found['num_images']} images, K = {found['num_samples']})"
    )
