"""The training loop, top to bottom: build, then step, log, validate and save until the last step."""

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

from dvaepp import ranks
from dvaepp.data import Dataset
from dvaepp.errors import UsageError, to_stderr
from dvaepp.files import write_durably
from dvaepp.models.base import Model, Terms
from dvaepp.progress import progress
from dvaepp.recipes.schema import Recipe
from dvaepp.training.clock import Clock
from dvaepp.training.conditions import conditions
from dvaepp.training.finite import Before, NonFinite
from dvaepp.training.interval import with_interval
from dvaepp.training.lines import of_all_processes, train_record, validation_line
from dvaepp.training.lock import owned
from dvaepp.training.metrics import Metrics
from dvaepp.training.resume import check_empty, check_resumable, resumed
from dvaepp.training.schedules import line_due
from dvaepp.training.signals import Signals, Stopped
from dvaepp.training.state import State, build, save
from dvaepp.training.step import step
from dvaepp.training.validation import judged, validate
from dvaepp.version import __version__

Callback = Callable[[dict[str, Any]], object]
"""Called with the record of each validation: the same that metrics.jsonl holds."""


class Run(NamedTuple):
    """What stays the same during a run."""

    recipe: Recipe
    folder: Path
    dataset: Dataset
    device: str
    say: Callable[[str], None]
    about: dict[str, Any]
    callbacks: Sequence[Callback] = ()

    def save(self, state: State, best: bool = False) -> None:
        save(self.folder / "checkpoints", state, self.recipe, self.about, best)


def train(
    recipe: Recipe,
    run_dir: Path | str,
    *,
    data_dir: Path | str | None = None,
    resume: bool = False,
    device: str = "cpu",
    say: Callable[[str], None] | None = None,
    model: Model | None = None,
    dataset: Dataset | None = None,
    callbacks: Sequence[Callback] = (),
) -> Path:
    """Train `recipe` into `run_dir` and return it; `resume` continues from its last checkpoint, bit for bit on a CPU.

    `model` and `dataset` stand in for those of the recipe, which then only describes them (`dvaepp.train` does so).
    `say` receives progress lines (default: stderr). SIGTERM, SIGINT and SIGHUP save a checkpoint and raise SystemExit
    with 143, 130 or 129; SIGUSR1 saves one and the run goes on. Inside `ranks.joined()` all processes of the job train
    one model.
    """
    folder = Path(run_dir)
    say = say or to_stderr
    if ranks.rank() != 0:
        say = _nothing
    if resume:
        check_resumable(folder)
    else:
        check_empty(folder)
    _check_processes(recipe)
    dataset = recipe.data.load(data_dir) if dataset is None else dataset
    _check_images(recipe, dataset)
    state = build(recipe, dataset, device, model)
    with owned(folder) if ranks.rank() == 0 else nullcontext():
        if resume:
            recipe, state = resumed(recipe, state, folder, dataset, device, say)
        else:
            check_empty(folder)  # of what another process may have done since
        recipe = with_interval(recipe, state.model, len(dataset.validation))
        about = {
            "dataset": dataset.name,
            "data_checksum": dataset.checksum,
            "image_shape": list(dataset.image_shape),
            "sample_shape": list(dataset.sample_shape),
            "version": __version__,
            "conditions": conditions(recipe, device),
        }
        if ranks.rank() == 0:
            write_durably(folder / "recipe.json", (recipe.model_dump_json(indent=1) + "\n").encode())
        processes = f", {ranks.size()} processes" if ranks.size() > 1 else ""
        count = f"{len(dataset.train)} training images, {recipe.training.steps} steps{processes}"
        if dataset.summary:
            say(dataset.summary)
        say(f"{recipe.name} on {dataset.name}: {count}")
        with Signals() as signals:
            _loop(Run(recipe, folder, dataset, device, say, about, callbacks), state, signals)
    return folder


def _nothing(line: str) -> None:
    """What the other processes of a job say."""


def _check_processes(recipe: Recipe) -> None:
    n = ranks.size()
    if n > 1 and recipe.estimator is not None:
        raise UsageError("gradient estimators train in one process: start without torchrun")
    if n > min(recipe.training.batch_size, recipe.chains.num_chains):
        raise UsageError(
            f"{n} processes are more than a batch of {recipe.training.batch_size} or {recipe.chains.num_chains} "
            "chains can be shared by: start fewer"
        )


def _check_images(recipe: Recipe, dataset: Dataset) -> None:
    expected = recipe.model.expected_likelihood
    if dataset.likelihood != expected:
        kinds = {"bernoulli": "binary images", "logistic_mixture": "images of 256 levels", "gaussian": "numbers"}
        raise UsageError(f"{dataset.name} has {kinds[dataset.likelihood]}; this model takes {kinds[expected]}")


def _loop(run: Run, state: State, signals: Signals) -> None:
    steps = run.recipe.training.steps
    assert run.recipe.training.validate_every is not None  # `with_interval` has seen to that
    validate_every = max(1, round(steps * run.recipe.training.validate_every))
    clock = Clock(state.step, steps, run.recipe.training.checkpoint_minutes)
    # on a terminal a bar; elsewhere the lines of each validation carry the time left
    first = ranks.rank() == 0
    with (
        Metrics(
            run.folder if first else None, run.recipe.training.tensorboard, state.step, state.progress.validated
        ) as metrics,
        progress(run.recipe.name, steps, None if first else False) as advance,
    ):
        advance(state.step)
        while True:
            if state.progress.validated < state.step and (state.step % validate_every == 0 or state.step == steps):
                state = _validated(run, state, signals, metrics, clock)
            if state.step >= steps or _enough(run, state):
                return
            state, found = _guarded_step(run, state)
            advance(1)
            if line_due(state.step, steps):
                found = of_all_processes(run.recipe, len(run.dataset.train), found)
                metrics.write(train_record(run.recipe, state, found, clock.speed(state.step)))
            clock.announce(state.step, run.say)
            stop, due = ranks.largest(signals.received, int(clock.save_due() or signals.save_asked()))
            if stop:
                _stop(run, state, int(stop))
            if due:
                run.save(state)
                clock.saved()
                run.say(f"step {state.step} saved")


def _enough(run: Run, state: State) -> bool:
    """Whether validations have stopped getting better for as long as the recipe is patient."""
    patience, stale = run.recipe.training.patience, state.progress.stale
    if patience is None or stale < patience:
        return False
    run.say(f"stopped at step {state.step}: {stale} validations without a better one (training.patience)")
    return True


def _guarded_step(run: Run, state: State) -> tuple[State, Terms]:
    """A step, or the end of the run with all that is needed to take this step again."""
    before = Before.of(state)
    try:
        state, found, _ = step(run.recipe, run.dataset, state, run.device)
    except NonFinite as error:
        save(run.folder / "failure", before.restored(), run.recipe, run.about)
        raise NonFinite(
            f"{error}; parameters and checkpoints are those before it. A lower optimizer.learning_rate may help; "
            f"dvaepp.training.replay({str(run.folder)!r}) takes the step again"
        ) from None
    return state, found


def _validated(run: Run, state: State, signals: Signals, metrics: Metrics, clock: Clock) -> State:
    """Validate and save. A signal cuts a long validation short: it is made up for when the run is resumed."""
    if ranks.size() > 1:  # there nothing is cut short, so that the processes keep together
        run.save(state)
    try:
        with signals.raising() if ranks.size() == 1 else nullcontext():
            record = validate(run.recipe, run.dataset, state, run.device)
    except Stopped:
        _stop(run, state, signals.received)
    metrics.write(record)
    for callback in run.callbacks if ranks.rank() == 0 else ():
        callback(record)
    state, best = judged(run.recipe, state, record)
    run.save(state, best)
    clock.saved()
    run.say(validation_line(record, run.recipe.training.steps, clock.left(state.step)))
    return state


def _stop(run: Run, state: State, number: int) -> NoReturn:
    run.save(state)
    again = f"Continue with --resume --run-dir {run.folder}, in Python with resume=True"
    run.say(f"stopped by a signal at step {state.step}; saved. {again}")
    raise SystemExit(128 + number)
