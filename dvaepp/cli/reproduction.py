"""The paper's tables: `reproduce`."""

import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import tyro

from dvaepp.cli.arguments import DataDir, Debug, Device, argument, at_least, usable_device
from dvaepp.errors import to_stderr
from dvaepp.files import write_durably

if TYPE_CHECKING:
    from dvaepp.reproduction.plan import Task


def reproduce(
    table: tyro.conf.Positional[
        Annotated[
            str,
            argument(
                "One of table1, table2, table3, table5 to table8, and relaxed, which goes beyond the paper.", "TABLE"
            ),
        ]
    ],
    cells: Annotated[
        tuple[str, ...], argument("Run only cells whose name contains one; * and ? are wild.", "PATTERN")
    ] = (),
    seeds: Annotated[tuple[int, ...], argument("Seeds to run each cell with.", "N")] = (0,),
    scale: Annotated[float, argument("Shorten every schedule to this share.", "F")] = 1.0,
    select: Annotated[
        bool, argument("Try the paper's cross-validation grid and evaluate what validates best.")
    ] = False,
    samples: Annotated[int | None, argument("Importance samples; default: the paper's.", "K")] = None,
    size: Annotated[Literal["paper", "small"], argument("Small nets for Tables 3 and 5-8 on a laptop.")] = "paper",
    executor: Annotated[
        str,
        argument(
            "local processes; dask-local, a dask cluster here, closed to other users by TLS; "
            "dask+tls://HOST:PORT, with the certificates of dask's configuration; or dask://HOST:PORT, through which "
            "anybody who reaches that port can run code.",
            "WHERE",
        ),
    ] = "local",
    workers: Annotated[int | None, argument("Cells at a time, one thread each; default: one per core.", "N")] = None,
    nice: Annotated[bool, argument("Leave the processor to everybody else (lowest priority).")] = False,
    dry_run: Annotated[bool, argument("Tell what would run, with times from a measured step.")] = False,
    show: Annotated[bool, argument("Print the paper's numbers and this library's, and run nothing.")] = False,
    out: Annotated[Path | None, argument("With --show: write FILE.md, or a plot to FILE.png or .svg.", "FILE")] = None,
    results: Annotated[Path, argument("Where the records of finished cells are.", "DIR")] = Path("results"),
    root: Annotated[Path, argument("Where the runs themselves go.", "DIR")] = Path("runs/reproduce"),
    data_dir: DataDir = None,
    device: Device = "cpu",
    debug: Debug = False,
) -> None:
    """Train and evaluate the cells of a table of the paper.

    Prints the paper's numbers and this library's. Interrupted at any point, also by SIGTERM, the same command goes on
    where it was; a cell with a record is never run again.

    Examples:
        dvaepp reproduce table2 --show
        dvaepp reproduce table2 --cells rbm --scale 0.01 --dry-run
        dvaepp reproduce table1 --cells joint marginal --seeds 0 1 --workers 2 --nice
    """
    from dvaepp.reproduction import plan, records
    from dvaepp.reproduction import show as view
    from dvaepp.reproduction.reproduce import run

    chosen = plan.chosen_cells(table, cells)
    if show:
        found = records.read(results, table, to_stderr)
        if not found:
            to_stderr(f"there are no records of {table} in {results}; --results DIR names another folder")
        if out is None:
            view.terminal(table, found)
        elif out.suffix == ".md":
            write_durably(out, view.markdown(table, found).encode())
        else:
            view.plot(table, found, out)
        if out is not None:
            print(f"wrote {out}")
        return
    at_least(1, "--samples", samples)
    at_least(1, "--workers", workers)
    tasks = plan.tasks(
        chosen,
        seeds=seeds,
        scale=scale,
        size=size,
        select=select,
        root=root.absolute(),
        results=results.absolute(),
        samples=samples,
        data_dir=None if data_dir is None else data_dir.absolute(),
        device=usable_device(device),
    )
    workers = workers or _cores()
    if dry_run:
        _dry_run(tasks, workers)
        return
    run(tasks, where=executor, workers=workers, root=root, say=to_stderr, nice=nice)
    view.terminal(table, records.read(results, table, to_stderr))


def _dry_run(tasks: "Sequence[Task]", workers: int) -> None:
    from dvaepp.reproduction.estimate import seconds_per_step
    from dvaepp.reproduction.reproduce import pending
    from dvaepp.reproduction.supplies import without_data
    from dvaepp.reproduction.view import progress_of

    left = pending(tasks)
    absent = without_data(left, lambda line: print(f"dvaepp: {line}", file=sys.stderr, flush=True))
    hours = 0.0
    measured: dict[str, float] = {}
    for task in tasks:
        if task not in left:
            print(f"{task.name}: done, {task.record_file.name}")
            continue
        if task.name in absent:
            print(f"{task.name}: {task.recipe.training.steps} steps, time unknown: {absent[task.name]}")
            continue
        # seeds and candidates take the same time, unless a candidate has another model
        key = f"{task.cell} {task.recipe.model.model_dump_json()}"
        if key not in measured:
            measured[key] = seconds_per_step(task)
        begun = progress_of(task)
        own = measured[key] * (begun.steps - begun.step) / 3600
        hours += own
        at = f", from step {begun.step}" if begun.step else ""
        print(f"{task.name}: {begun.steps} steps{at}, {1e3 * measured[key]:.1f} ms each, {own:.2f} h")
    unknown = f", and {len(absent)} of unknown time" if absent else ""
    print(
        f"{len(tasks) - len(left)} done, {len(left)} to run: {hours:.1f} h of training on one thread each, "
        f"about {hours / workers:.1f} h with {workers} at a time{unknown}; validation and evaluation come on top"
    )


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
