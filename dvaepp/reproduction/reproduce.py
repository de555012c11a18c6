"""Run, in parallel, the cells of a table that have no record yet, and show the progress of all of them together."""

import json
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from pathlib import Path
from typing import NoReturn

from dvaepp.reproduction.executors import Executor, executor
from dvaepp.reproduction.plan import Task
from dvaepp.reproduction.supplies import without_data
from dvaepp.reproduction.view import View
from dvaepp.reproduction.work import perform
from dvaepp.training.signals import Signals

STOP_SECONDS = 120.0  # how long to wait for workers to save; no step before the last checkpoint is lost beyond that


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
    with View(tasks, say) as view:
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
    begun = [future for future in futures if not future.cancelled()]  # `wait` never counts a cancelled one as done
    late = len(wait(begun, timeout=STOP_SECONDS).not_done)
    if late:
        say(f"{late} worker{'s' if late > 1 else ''} had not ended after {STOP_SECONDS:.0f} s")
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
