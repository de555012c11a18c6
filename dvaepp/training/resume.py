"""Continuing a run: a resumed run must have the recipe and the data that it began with."""

from collections.abc import Callable
from pathlib import Path

from dvaepp import distributed
from dvaepp.data import Dataset
from dvaepp.errors import UsageError
from dvaepp.recipes import differences
from dvaepp.recipes.schema import Recipe
from dvaepp.training import checkpoint
from dvaepp.training.conditions import changed, conditions
from dvaepp.training.interval import validating
from dvaepp.training.same_data import check_same_data
from dvaepp.training.state import State, restore

# Fields that may change when a run is resumed, because they do not change what the run computes.
FREE = ("training.tensorboard", "training.checkpoint_minutes", "training.patience", "evaluation.")


def check_empty(folder: Path) -> None:
    if checkpoint.exists(folder / "checkpoints"):
        raise UsageError(
            f"{folder} already holds a run: continue it with --resume (in Python resume=True), or choose another "
            "--run-dir"
        )


def check_resumable(folder: Path) -> None:
    """Refuse an exported model before its data is read and a model is built for it."""
    record = checkpoint.last_record(folder / "checkpoints")
    if record is not None and "progress" not in record:
        raise UsageError(
            f"{folder} is an exported model: without the optimizer, the chains and the random numbers of its training "
            "it cannot be resumed; resume the run that it was exported from, or train its recipe in a new --run-dir"
        )


def resumed(
    recipe: Recipe, state: State, folder: Path, dataset: Dataset, device: str, say: Callable[[str], None]
) -> tuple[Recipe, State]:
    """The recipe, and the state of the last checkpoint; refuses another recipe unless it only trains for longer.

    A recipe that leaves the interval of validations open gets the one that the run began with.
    """
    if not checkpoint.exists(folder / "checkpoints"):
        say(f"{folder} has no checkpoint yet: starting from step 0")
        return recipe, state
    saved = _recovered(folder / "checkpoints", device, say)
    if saved.recipe is not None:
        if recipe.training.validate_every is None:
            recipe = validating(recipe, saved.recipe["training"]["validate_every"])
        changes = differences(saved.recipe, recipe)
        shorter = recipe.training.steps < saved.recipe["training"]["steps"]
        free = FREE if shorter else (*FREE, "training.steps")
        refused = [text for path, text in changes.items() if not path.startswith(free)]
        if refused:
            raise UsageError(
                f"{folder} was trained by another recipe ({'; '.join(refused)}): a resumed run may only extend "
                "training.steps; train the changed recipe in a new --run-dir"
            )
    check_same_data(folder, saved.record, dataset, recipe.data)
    state = restore(state, saved)
    if state.step >= recipe.training.steps:
        say(f"{folder} is finished, at step {state.step}; --set training.steps=N with a larger N extends it")
    else:
        say(f"resuming at step {state.step}")
        if line := changed(saved.record, conditions(recipe, device)):
            say(line)
    return recipe, state


def _recovered(folder: Path, device: str, say: Callable[[str], None]) -> checkpoint.Checkpoint:
    """The last intact checkpoint. The first process renames damaged files before the other processes read any."""
    if distributed.rank() == 0:
        saved = checkpoint.recover(folder, device, say)
    distributed.largest(0)  # an exchange in which all processes wait for the first
    return saved if distributed.rank() == 0 else checkpoint.read(folder, device=device)
