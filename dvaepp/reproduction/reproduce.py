"""Run, in parallel, the cells of a table that have no record yet, and show the progress of all of them together."""

import json
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

from dvaepp.reproduction.executors import Executor, executor
from dvaepp.reproduction.plan import Task
from dvaepp.reproduction.supplies import without_data
from dvaepp.reproduction.work import perform
from dvaepp.training.signals import Signals

INTERVAL = 60.0  # seconds between two lines of progress where there is no terminal
STOP_SECONDS = 120.0  # how long to wait for workers to save; one that takes longer goes on and ends by itself
TAIL = 8192  # bytes at the end of metrics.jsonl, which are more than a line has


def pending(tasks: Sequence[Task]) -> list[Task]:
    """Tasks whose cell has no record yet."""
    return [task for task in tasks if not task.record_file.exists()]


def run(
    tasks: Sequence[Task], *, where: str, workers: int, root: Path, say: Callable[[str], None], nice: bool = False
) -> None:
    """Perform all tasks that have not been done; of several candidates for a cell only the best is evaluated.

    On SIGTERM, SIGINT and SIGHUP the workers save and end, and SystemExit is raised. The same call goes on from there.
    """
    left = pending(tasks)
    say(f"{len(tasks) - len(left)} done already, {len(left)} to run")
    if not left:
        return
    # Data is looked for on this machine, unless the cells run on another one.
    absent = {} if "://" in where else without_data(left, say)
    failures = [f"{name}: {reason}" for name, reason in absent.items()]
    able = [task for task in left if task.name not in absent]
    if able:
        with executor(where, workers, root / "log.txt", nice) as pool, Signals() as signals:
            failed = _perform(able, pool, signals, say)
            chosen = [] if failed else _chosen([task for task in able if not task.evaluate], say)
            failures += failed + _perform(chosen, pool, signals, say)
    if failures:
        raise OSError(
            f"{len(failures)} of {len(left)} failed; the others are done, and running the same again goes on with "
            f"these: {'; '.join(failures[:3])}"
        )


def _perform(tasks: Sequence[Task], pool: Executor, signals: Signals, say: Callable[[str], None]) -> list[str]:
    """Submit the tasks, show their progress until all have ended, and return what went wrong with which."""
    futures = {pool.submit(perform, task.model_dump_json()): task for task in tasks}
    failures: list[str] = []
    open_futures = set(futures)
    with _View(tasks, say) as view:
        while open_futures:
            if signals.received:
                _stop(pool, open_futures, signals.received, say)
            done, open_futures = wait(open_futures, timeout=1.0, return_when=FIRST_COMPLETED)
            for future in done:
                task, error = futures[future], future.exception()
                if error is not None:
                    failures.append(f"{task.name}: {error}")
                view.finished(task, error)
            view.refresh()
    return failures


def _stop(pool: Executor, futures: "set[Future[str]]", number: int, say: Callable[[str], None]) -> NoReturn:
    say("stopping: the workers save and end")
    pool.shutdown(wait=False)
    wait(futures, timeout=STOP_SECONDS)
    say("stopped; the same command goes on from the last checkpoints")
    raise SystemExit(128 + number)


def _chosen(candidates: Sequence[Task], say: Callable[[str], None]) -> list[Task]:
    """For each cell and seed the candidate with the best validation, now to be evaluated."""
    groups: dict[Path, list[Task]] = {}
    for task in candidates:
        groups.setdefault(task.record_file, []).append(task)
    chosen = []
    for group in groups.values():
        validations = [best_validation(task.folder) for task in group]
        scores = [{"changes": list(task.changes), "validation": v} for task, v in zip(group, validations, strict=True)]
        best = group[validations.index(max(validations))]
        say(f"{best.name} has the best validation, {max(validations)}")
        chosen.append(best.model_copy(update={"evaluate": True, "selected_from": scores}))
    return chosen


def best_validation(folder: Path) -> float:
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    found = [line.get("validation_log_likelihood", line.get("validation_bound")) for line in lines]
    return max(float(value) for value in found if value is not None)


class TaskProgress(NamedTuple):
    """How far a run is: steps done and of how many."""

    step: int
    steps: int


def progress_of(task: Task) -> TaskProgress:
    """How far the run of a task is, from the last line of its metrics."""
    steps = task.recipe.training.steps
    if task.record_file.exists():
        return TaskProgress(steps, steps)
    try:
        with open(task.folder / "metrics.jsonl", "rb") as file:
            file.seek(0, 2)
            file.seek(max(0, file.tell() - TAIL))
            lines = file.read().splitlines()
    except OSError:
        return TaskProgress(0, steps)
    for line in reversed(lines):
        try:
            return TaskProgress(int(json.loads(line)["step"]), steps)
        except (ValueError, KeyError, TypeError):
            continue
    return TaskProgress(0, steps)


class _View:
    """The progress of all cells: a bar for each running one on a terminal, and a line every minute elsewhere."""

    def __init__(self, tasks: Sequence[Task], say: Callable[[str], None]) -> None:
        self.tasks, self.say = list(tasks), say
        self.left = {task.name for task in tasks}
        self.first = {task.name: progress_of(task).step for task in tasks}
        self.started = self.last = time.monotonic()
        self._bars: dict[str, Any] = {}
        self._rich = None
        if sys.stderr.isatty():
            from rich.console import Console
            from rich.progress import Progress as Bars

            self._rich = Bars(console=Console(stderr=True))
            self._all = self._rich.add_task("all cells", total=1.0)

    def __enter__(self) -> "_View":
        if self._rich is not None:
            self._rich.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._rich is not None:
            self._rich.stop()

    def finished(self, task: Task, error: BaseException | None) -> None:
        self.left.discard(task.name)
        self.say(f"{task.name}: {'done' if error is None else f'failed: {error}'} ({len(self.left)} left)")

    def refresh(self) -> None:
        now = {task.name: progress_of(task) for task in self.tasks}
        done = sum(p.step for p in now.values())
        total = sum(p.steps for p in now.values())
        running = {name: p for name, p in now.items() if name in self.left and p.step > self.first[name]}
        if self._rich is not None:
            for name, p in running.items():
                if name not in self._bars:
                    self._bars[name] = self._rich.add_task(name, total=p.steps)
                self._rich.update(self._bars[name], completed=p.step)
            for name in [name for name in self._bars if name not in self.left]:
                self._rich.remove_task(self._bars.pop(name))
            self._rich.update(self._all, completed=done / max(total, 1))
        elif time.monotonic() - self.last >= INTERVAL:
            self.last = time.monotonic()
            speed = (done - sum(self.first.values())) / (self.last - self.started)
            minutes = (total - done) / max(speed, 1e-9) / 60
            each = ", ".join(f"{name} {100 * p.step // p.steps} %" for name, p in running.items())
            self.say(f"{len(self.left)} cells left, about {minutes:.0f} min of training; running: {each or 'none yet'}")
