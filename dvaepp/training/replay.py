"""Repeat the step at which a run stopped because a number was not finite, under torch's anomaly detection."""

from pathlib import Path

import torch

from dvaepp.recipes.schema import Recipe
from dvaepp.training import checkpoint
from dvaepp.training.finite import NonFinite
from dvaepp.training.state import State, build, restore
from dvaepp.training.step import step


def replay(run_dir: Path | str, *, data_dir: Path | str | None = None, device: str = "cpu") -> tuple[State, str]:
    """The state before the failed step of a run, and a text that says what goes wrong in that step.

    Choose it after a run has ended with "the loss is nan" or "the gradient is not finite". The text names the operation
    whose gradient is not finite; the state holds the model, the chains and the generator for a closer look.

    >>> state, reason = replay("run")
    >>> print(reason)
    """
    saved = checkpoint.read(Path(run_dir) / "failure", device=device)
    recipe = Recipe.model_validate(saved.recipe)
    dataset = recipe.data.load(data_dir)
    state = restore(build(recipe, dataset, device), saved)
    try:
        with torch.autograd.set_detect_anomaly(True):
            step(recipe, dataset, state, device)
    except (NonFinite, RuntimeError) as error:
        return restore(build(recipe, dataset, device), saved), str(error)
    return state, "the step is finite here: another device, thread count or version computes it"
