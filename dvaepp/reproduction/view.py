"""How far the cells of a table are: a bar for each on a terminal, a line every minute elsewhere."""

import json
import sys
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, NamedTuple

from dvaepp.reproduction.plan import Task
from dvaepp.training.clock import duration

INTERVAL = 60.0  # seconds between two lines where there is no terminal
TAIL = 8192  # bytes at the end of metrics.jsonl, which are more than a line has


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


def line(left: Collection[str], first: Mapping[str, int], now: Mapping[str, TaskProgress], seconds: float) -> str:
    """How many cells are left and how far they are, given the steps of all cells at first and `seconds` later.

    The time left is told only after steps have been seen. A trained cell that is left waits for its evaluation, or has
    begun it.
    """
    done = sum(p.step - first[name] for name, p in now.items())
    to_do = sum(p.steps - p.step for p in now.values())
    time_left = f", about {duration(to_do * seconds / done)} of training" if done and to_do else ""
    running = [
        f"{name}: trained" if p.step >= p.steps else f"{name}: {100 * p.step // p.steps} %"
        for name, p in now.items()
        if name in left and (p.step > first[name] or p.step >= p.steps)
    ]
    return f"{len(left)} cell{'s' * (len(left) > 1)} left{time_left}" + (f"; {', '.join(running)}" if running else "")


class View:
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

    def __enter__(self) -> "View":
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
        if self._rich is not None:
            for name in self.left:
                if name not in self._bars and now[name].step > self.first[name]:
                    self._bars[name] = self._rich.add_task(name, total=now[name].steps)
            for name in self._bars.keys() - self.left:
                self._rich.remove_task(self._bars.pop(name))
            for name, bar in self._bars.items():
                self._rich.update(bar, completed=now[name].step)
            share = sum(p.step for p in now.values()) / max(1, sum(p.steps for p in now.values()))
            self._rich.update(self._all, completed=share)
        elif time.monotonic() - self.last >= INTERVAL:
            self.last = time.monotonic()
            self.say(line(self.left, self.first, now, self.last - self.started))
