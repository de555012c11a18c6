"""The training loop, top to bottom: build, then step, log, validate and save until the last step."""

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

from dvaepp import distributed
from dvaepp.data import Dataset
from dvaepp.errors import to_stderr
from dvaepp.files import expanded, write_durably
from dvaepp.models.base import Model, Terms
from dvaepp.progress import progress
from dvaepp.recipes.schema import Recipe
from dvaepp.training.checks import check_images, check_processes
from dvaepp.training.clock import Clock
from dvaepp.training.collector import spared
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


class Job(NamedTuple):
    """What stays the same from the first step of a run to its last."""

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

    Choose it over `dvaepp.train`, which calls it, for a loop without pictures, or inside `distributed.joined()`, where
    all processes of a job train one model. `model` and `dataset` take the place of those that the recipe names. `say`
    receives progress lines (default: stderr). SIGTERM, SIGINT and SIGHUP save a checkpoint and raise SystemExit with
    143, 130 or 129; SIGUSR1 saves one, and the run goes on.

    >>> recipe = dvaepp.recipes.build("demo", overrides=["training.steps=10", "training.validation_images=2"])
    >>> run = train(recipe, "run", dataset=dvaepp.data.as_dataset(torch.ones(20, 28, 28)), say=lambda line: None)
    """
    folder = expanded(run_dir)
    say = say or to_stderr
    if distributed.rank() != 0:
        say = _nothing
    if resume:
        check_resumable(folder)
    else:
        check_empty(folder)
    check_processes(recipe)
    dataset = recipe.data.load(data_dir) if dataset is None else dataset
    check_images(recipe, dataset)
    state = build(recipe, dataset, device, model)
    with owned(folder) if distributed.rank() == 0 else nullcontext():
        if resume:
            recipe, state = resumed(recipe, state, folder, dataset, device, say)
        else:
            check_empty(folder)  # again, now that the lock is ours: another process may have begun a run here
        recipe = with_interval(recipe, state.model, len(dataset.validation))
        about = {
            "dataset": dataset.name,
            "data_checksum": dataset.checksum,
            "image_shape": list(dataset.image_shape),
            "sample_shape": list(dataset.sample_shape),
            "version": __version__,
            "conditions": conditions(recipe, device),
        }
        if distributed.rank() == 0:
            write_durably(folder / "recipe.json", (recipe.model_dump_json(indent=1) + "\n").encode())
        processes = f", {distributed.size()} processes" if distributed.size() > 1 else ""
        count = f"{len(dataset.train)} training images, {recipe.training.steps} steps{processes}"
        if dataset.summary:
            say(dataset.summary)
        say(f"{recipe.name} on {dataset.name}: {count}")
        with spared(), Signals() as signals:
            _loop(Job(recipe, folder, dataset, device, say, about, callbacks), state, signals)
    return folder


def _nothing(line: str) -> None:
    """Say nothing: of several processes only the first one reports."""


def _loop(job: Job, state: State, signals: Signals) -> None:
    steps = job.recipe.training.steps
    assert job.recipe.training.validate_every is not None  # `with_interval` has put a number here
    validate_every = max(1, round(steps * job.recipe.training.validate_every))
    clock = Clock(state.step, steps, job.recipe.training.checkpoint_minutes)
    # `progress` draws a bar on a terminal. Elsewhere the line of each validation tells how much time is left.
    first = distributed.rank() == 0
    with (
        Metrics(
            job.folder if first else None, job.recipe.training.tensorboard, state.step, state.progress.validated
        ) as metrics,
        progress(job.recipe.name, steps, None if first else False) as advance,
    ):
        advance(state.step)
        while True:
            if state.progress.validated < state.step and (state.step % validate_every == 0 or state.step == steps):
                state = _validated(job, state, signals, metrics, clock)
            if state.step >= steps or _enough(job, state):
                return
            state, found = _guarded_step(job, state)
            advance(1)
            if line_due(state.step, steps):
                found = of_all_processes(job.recipe, len(job.dataset.train), found)
                metrics.write(train_record(job.recipe, state, found, clock.speed(state.step)))
            clock.announce(state.step, job.say)
            stop, due = distributed.largest(signals.received, int(clock.save_due() or signals.save_asked()))
            if stop:
                _stop(job, state, int(stop))
            if due:
                job.save(state)
                clock.saved()
                job.say(f"step {state.step} saved")


def _enough(job: Job, state: State) -> bool:
    """Whether the run may end early: `training.patience` validations in a row were no better than the best one."""
    patience, stale = job.recipe.training.patience, state.progress.stale
    if patience is None or stale < patience:
        return False
    job.say(f"stopped at step {state.step}: {stale} validations without a better one (training.patience)")
    return True


def _guarded_step(job: Job, state: State) -> tuple[State, Terms]:
    """Take a step. If a number is not finite, save the state before the step for `replay`, and end the run."""
    before = Before.of(state)
    try:
        state, found, _ = step(job.recipe, job.dataset, state, job.device)
    except NonFinite as error:
        save(job.folder / "failure", before.restored(), job.recipe, job.about)
        raise NonFinite(
            f"{error}; parameters and checkpoints are those before it. A lower optimizer.learning_rate may help; "
            f"dvaepp.training.replay({str(job.folder)!r}) takes the step again"
        ) from None
    return state, found


def _validated(job: Job, state: State, signals: Signals, metrics: Metrics, clock: Clock) -> State:
    """Validate and save. A signal ends a long validation at once; a resumed run repeats it.

    Several processes cannot leave a validation at different moments. They save before it, and then finish it.
    """
    if distributed.size() > 1:
        job.save(state)
    try:
        with signals.raising() if distributed.size() == 1 else nullcontext():
            record = validate(job.recipe, job.dataset, state, job.device)
    except Stopped:
        _stop(job, state, signals.received)
    metrics.write(record)
    for callback in job.callbacks if distributed.rank() == 0 else ():
        callback(record)
    state, best = judged(job.recipe, state, record)
    job.save(state, best)
    clock.saved()
    job.say(validation_line(record, job.recipe.training.steps, clock.left(state.step)))
    return state


def _stop(job: Job, state: State, number: int) -> NoReturn:
    job.save(state)
    again = f"Continue with --resume --run-dir {job.folder}, in Python with resume=True"
    job.say(f"stopped by a signal at step {state.step}; saved. {again}")
    raise SystemExit(128 + number)
