"""Real cells at a tiny scale: run, killed, run again, on processes and on dask; records; side by side."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from dvaepp import cli, recipes
from dvaepp.errors import UsageError
from dvaepp.recipes.schema import DataConfig
from dvaepp.reproduction import paper, plan, records, show, work
from dvaepp.reproduction.claims import STATED, claims
from dvaepp.reproduction.measured import by_scale, measured
from dvaepp.reproduction.records import Record
from dvaepp.reproduction.reproduce import best_validation, pending, run
from dvaepp.reproduction.view import TaskProgress, line, progress_of

DATA = Path(__file__).resolve().parents[3] / "shared" / "data"
on_request = pytest.mark.skipif("DVAEPP_FAULTS" not in os.environ, reason="DVAEPP_FAULTS=1 also kills dask's workers")
needs_data = pytest.mark.skipif(not DATA.exists(), reason="the data sets are not beside the project")


def _tasks(tmp_path: Path, *patterns: str, scale: float = 1e-4, **options: Any) -> list[plan.Task]:
    """Cells of Table 2 with short validations: else they would take longer than so few steps."""
    chosen = plan.chosen_cells("table2", patterns or ("joint/dataset=mnist_static",))
    given: dict[str, Any] = {"seeds": [0], "size": "paper", "select": False, "samples": 2, "data_dir": DATA} | options
    tasks = plan.tasks(chosen, scale=scale, root=tmp_path / "runs", results=tmp_path / "results", **given)
    light = ["training.validation_images=20", "training.validation_samples=2", "training.validate_every=0.1"]
    return [task.model_copy(update={"recipe": recipes.override(task.recipe, light)}) for task in tasks]


def _quiet(line: str) -> None: ...


@needs_data
@pytest.mark.slow
def test_a_table_stopped_by_sigterm_goes_on_with_the_same_command(tmp_path: Path) -> None:
    """Not one step is lost, and nobody is left behind."""
    folders = ["--root", str(tmp_path / "runs"), "--results", str(tmp_path / "results"), "--data-dir", str(DATA)]
    cells = ["--cells", "joint/dataset=mnist_static/layers=1", "--scale", "0.5", "--workers", "2"]
    command = [sys.executable, "-m", "dvaepp", "reproduce", "table2", *cells, *folders]
    steps: list[list[int]] = []
    for _ in range(2):
        process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
        log, logged = tmp_path / "runs" / "log.txt", 2 * (len(steps) + 1)
        while not log.exists() or log.read_text().count("steps/s") < logged:
            assert process.poll() is None, process.stderr and process.stderr.read()
            time.sleep(0.2)
        process.terminate()
        _, errors = process.communicate(timeout=100)
        assert process.returncode == 143 and "the same command goes on" in errors
        stopped = sorted(int(number) for number in re.findall(r"stopped by a signal at step (\d+)", log.read_text()))
        steps.append(stopped)
    resumed = sorted(int(number) for number in re.findall(r"resuming at step (\d+)", log.read_text()))
    assert resumed == steps[0] and len(steps[0]) == 2 and len(steps[1]) == 4


@needs_data
@pytest.mark.slow
def test_cells_run_in_processes_and_leave_records(tmp_path: Path) -> None:
    tasks = _tasks(tmp_path, "joint/dataset=mnist_static/layers=1", scale=3e-5)
    said: list[str] = []
    run(tasks, where="local", workers=2, root=tmp_path / "runs", say=said.append)
    found = records.read(tmp_path / "results", "table2")
    assert len(found) == 2 and not pending(tasks)
    record = found[0]
    best = max(record.validation, key=lambda line: line["validation_log_likelihood"])
    assert record.steps == best["step"] <= 30 and record.scale == pytest.approx(3e-5) and record.num_samples == 2
    assert record.num_images == 10_000 and record.split == "test" and record.log_partition is None
    assert record.cpu_seconds and record.cpu_seconds > 0 and record.validation
    assert record.recipe_sha256 == records.digest(tasks[0].recipe) or record.recipe["model"]["hidden"]
    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "results").iterdir()}
    run(tasks, where="local", workers=2, root=tmp_path / "runs", say=said.append)
    assert said[-1] == "2 done already, 0 to run"
    assert {path: path.stat().st_mtime_ns for path in (tmp_path / "results").iterdir()} == before


SCRIPT = """
import sys
from pathlib import Path
from dvaepp.reproduction.plan import Task
from dvaepp.reproduction.reproduce import run
if __name__ == "__main__":
    tasks = [Task.model_validate_json(line) for line in open(sys.argv[1])]
    run(tasks, where=sys.argv[2], workers=1, root=Path(sys.argv[3]), say=lambda line: print(line, flush=True))
"""


def _command(tmp_path: Path, where: str) -> list[str]:
    """Two cells of 1500 steps, as a process of its own."""
    patterns = ("joint/dataset=mnist_static/layers=1/linear=true", "marginal/dataset=mnist_static/layers=1/linear=true")
    tasks = _tasks(tmp_path, *patterns, scale=0.0015)
    (tmp_path / "tasks").write_text("".join(task.model_dump_json() + "\n" for task in tasks))
    (tmp_path / "script.py").write_text(SCRIPT)
    return [sys.executable, *(str(tmp_path / name) for name in ("script.py", "tasks")), where, str(tmp_path / "runs")]


def _wait_for(condition: Any, seconds: float = 200) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.1)


def _workers(parent: int, name: str) -> list[int]:
    """Processes below `parent` whose command holds `name`."""
    listed = subprocess.run(["ps", "-ww", "-eo", "pid,ppid,args"], capture_output=True, text=True).stdout.splitlines()[
        1:
    ]
    rows = [line.split(None, 2) for line in listed]
    below, found = {parent}, []
    for _ in range(3):
        below |= {int(pid) for pid, ppid, _ in rows if int(ppid) in below}
    for pid, _, command in rows:
        if int(pid) in below and name in command:
            found.append(int(pid))
    return found


@needs_data
@pytest.mark.slow
@pytest.mark.parametrize("where", ["local", pytest.param("dask-local", marks=on_request)])
def test_killed_workers_and_parents_cost_no_finished_cell(where: str, tmp_path: Path) -> None:
    """kill -9 of a worker in the middle of a cell, then of the parent; the rerun ends what is left, and only that."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    command = _command(tmp_path, where)
    process = subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        _wait_for(lambda: list((tmp_path / "runs").glob("*/checkpoints/step-*.json")))
        name = "reproduction.worker" if where == "local" else "spawn_main"
        worker = max(_workers(process.pid, name))
        os.kill(worker, signal.SIGKILL)
        _wait_for(lambda: len(list((tmp_path / "results").glob("*.json"))) == 1)
        first = next((tmp_path / "results").glob("*.json"))
        written = first.stat().st_mtime_ns
        _wait_for(lambda: len(list((tmp_path / "runs").glob("*/checkpoints/step-*.json"))) >= 3)
    finally:
        process.kill()
        process.wait()
    time.sleep(3)  # the worker saves when it sees that its parent has gone
    _wait_for(lambda: not _workers(1, str(tmp_path)))
    second = [path for path in (tmp_path / "runs").glob("table2*") if path.name not in first.name]
    again = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert again.returncode == 0, again.stderr[-2000:]
    assert again.stdout.startswith("1 done already, 1 to run")
    assert len(list((tmp_path / "results").glob("*.json"))) == 2 and first.stat().st_mtime_ns == written
    lines = [json.loads(x) for x in (second[0] / "metrics.jsonl").read_text().splitlines()]
    steps = [line["step"] for line in lines if "bound" in line]
    assert steps == sorted(set(steps)), "no step was recorded twice"


@needs_data
@pytest.mark.slow
def test_a_worker_that_does_not_end_is_not_waited_for(tmp_path: Path) -> None:
    """A nice worker, which has a session of its own; the second cell has not begun."""
    script = SCRIPT.replace("tasks = [", "reproduce.STOP_SECONDS = 1.0\n    tasks = [").replace(
        "say=", "nice=True, say="
    )
    command = _command(tmp_path, "local")
    (tmp_path / "script.py").write_text("from dvaepp.reproduction import reproduce\n" + script)
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        _wait_for(lambda: _workers(process.pid, "reproduction.worker"))
        (worker,) = _workers(process.pid, "reproduction.worker")
        os.kill(worker, signal.SIGSTOP)
        process.terminate()
        said, _ = process.communicate(timeout=30)
    finally:
        process.kill()
    assert process.returncode == 143
    assert "1 worker had not ended after 1 s" in said
    assert not Path(f"/proc/{worker}").exists()


@needs_data
@pytest.mark.slow
def test_select_evaluates_what_validates_best(tmp_path: Path) -> None:
    tasks = _tasks(tmp_path, "marginal/dataset=mnist_static/layers=1/linear=true", scale=2e-5, select=True)
    assert len(tasks) == 4 and not any(task.evaluate for task in tasks)
    run(tasks, where="local", workers=2, root=tmp_path / "runs", say=_quiet)
    (record,) = records.read(tmp_path / "results")
    scores = {tuple(entry["changes"]): entry["validation"] for entry in record.selected_from}
    assert len(scores) == 4
    assert scores == {task.changes: best_validation(task.folder) for task in tasks}
    best = max(scores, key=lambda key: scores[key])
    assert f"smoothing.beta={record.recipe['smoothing']['beta']:.0f}" in best


def test_a_cell_that_fails_is_named_and_the_others_are_kept(tmp_path: Path) -> None:
    tasks = _tasks(tmp_path, "joint/dataset=mnist_static/layers=1/linear=true", scale=1e-6, data_dir=tmp_path)
    bad = tasks[0].model_copy(
        update={"recipe": tasks[0].recipe.model_copy(update={"data": DataConfig(path="nowhere.npy")})}
    )
    with pytest.raises(Exception, match="nowhere"):
        work.perform(bad.model_dump_json())
    with pytest.raises(OSError, match="1 of 1 failed; .*running the same again goes on.*nowhere"):
        run([bad], where="local", workers=1, root=tmp_path / "runs", say=_quiet)
    with pytest.raises(UsageError, match=r"dask-local, dask://HOST:PORT or .*, got 'slurm'"):
        run([bad], where="slurm", workers=1, root=tmp_path / "runs", say=_quiet)


@needs_data
def test_a_dry_run_measures_and_trains_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folders = ["--root", str(tmp_path / "runs"), "--results", str(tmp_path / "results"), "--data-dir", str(DATA)]
    cli.main(["reproduce", "table2", "--cells", "joint/*static/layers=1/linear=true", "--dry-run", *folders])
    lines = capsys.readouterr().out.splitlines()
    assert "1000000 steps," in lines[0] and "ms each" in lines[0]
    assert lines[-1].startswith("0 done, 1 to run:") and not (tmp_path / "runs").exists()


def test_progress_survives_a_torn_line(tmp_path: Path) -> None:
    (task,) = _tasks(tmp_path, "joint/dataset=mnist_static/layers=1/linear=true")
    assert progress_of(task).step == 0
    task.folder.mkdir(parents=True)
    (task.folder / "metrics.jsonl").write_text('{"step": 7}\n{"step": 9}\n{"ste')
    assert progress_of(task) == (9, 100)


@pytest.mark.parametrize(
    ("first", "now", "words"),
    [
        ({"a": 0, "b": 0}, {"a": 0, "b": 0}, "2 cells left"),  # no step yet, so that no time can be told
        ({"a": 100, "b": 0}, {"a": 100, "b": 0}, "2 cells left; a: trained"),  # the first is being evaluated
        ({"a": 0, "b": 0}, {"a": 50, "b": 0}, "2 cells left, about 30 min of training; a: 50 %"),
        ({"a": 40, "b": 0}, {"a": 100, "b": 20}, "2 cells left, about 10 min of training; a: trained, b: 20 %"),
    ],
)
def test_a_line_of_progress_tells_only_what_is_known(first: dict[str, int], now: dict[str, int], words: str) -> None:
    known = {name: TaskProgress(step, 100) for name, step in now.items()}
    assert line({"a", "b"}, first, known, seconds=600.0) == words
    assert line({"b"}, first, known, seconds=600.0).startswith("1 cell left")


# Side by side.


def _record(cell: paper.Cell, value: float, error: float = 0.1, seed: int = 0, scale: float = 0.06) -> Record:
    return Record(
        cell=cell.name,
        seed=seed,
        scale=scale,
        steps=60_000,
        num_samples=1000,
        num_images=10_000,
        split="test",
        beta="inf",
        log_likelihood=value,
        standard_error=error,
        bits_per_dim=-value / 543.4,
        log_partition=None,
        dataset=cell.dataset,
        data_checksum="0" * 64,
        recipe_sha256="0" * 64,
        recipe={"name": cell.recipe},
        code_version="test",
    )


def test_a_number_is_the_mean_over_seeds_at_the_largest_scale() -> None:
    cell = paper.cells("table2")[0]
    found = [_record(cell, -90.0, seed=0), _record(cell, -91.0, seed=1), _record(cell, -80.0, scale=0.01)]
    mine = measured(cell, found)
    assert mine is not None and mine.value == -90.5 and mine.spread == pytest.approx(0.5**0.5) and mine.seeds == 2
    assert (mine.number, mine.provenance) == ("-90.50 ± 0.71", "scale 0.06, K 1000, 2 seeds")
    one = measured(cell, found[2:])
    assert one is not None
    assert (one.number, one.provenance) == ("-80.00 ± se 0.10", "scale 0.01, K 1000, 1 seed")
    assert measured(paper.cells("table2")[1], found) is None


def test_the_best_record_comes_first_and_claims_compare_equal_scales(capsys: pytest.CaptureFixture[str]) -> None:
    overlapping, rolfe = _cell("rbm"), _cell("rolfe")
    found = [_record(overlapping, -84.0, scale=0.15), _record(overlapping, -90.0), _record(rolfe, -89.0)]
    assert [mine.value for mine in by_scale(overlapping, found)] == [-84.0, -90.0]
    text = show.markdown("table2", found)
    assert 0 < text.index("| -84.00") < text.index("1 records of shorter schedules") < text.index("| -90.00")
    assert "| -85.41&nbsp;±&nbsp;0.04 | -84.00&nbsp;±&nbsp;se 0.10 | +1.41 | scale 0.15" in text
    assert "contradicted in 1 of 1 comparisons" in text
    assert "RBM, overlapping (DVAE++) - RBM, spike-and-exp (Rolfe) -1.00 ± 0.14 (scale 0.06)" in text
    show.terminal("table2", found)
    shown = capsys.readouterr().out
    assert 0 < shown.index("-84.00") < shown.index("-90.00")


def _cell(method: str, layers: int = 1, table: str = "table2") -> paper.Cell:
    name = f"{table}/{method}/dataset=mnist_static/layers={layers}/linear=false"
    return next(cell for cell in paper.cells(table) if cell.name == name)


def test_claims_are_checked_against_the_records() -> None:
    def judged(*found: records.Record) -> list[str]:
        return [claim.verdict for claim in claims("table2", found)]

    rbm, joint, rolfe = _cell("rbm"), _cell("joint"), _cell("rolfe")
    good = judged(_record(rbm, -88.0), _record(joint, -95.0), _record(rolfe, -88.1), _record(_cell("rbm", 2), -87.0))
    assert good == [
        "holds in 1 of 1 comparisons",
        "open: every difference is within two standard errors",
        "no records yet",
        "holds in 1 of 1 comparisons",
        "no records yet",
    ]
    bad = claims("table2", [_record(rbm, -96.0), _record(joint, -95.0), _record(_cell("rbm", 2), -96.1)])
    assert bad[0].verdict == "contradicted in 1 of 1 comparisons" and bad[0].supports == []
    assert bad[0].evidence.startswith(
        "Against it: mnist_static, 1 nonlinear: RBM, overlapping (DVAE++) - Joint ELBO -1.0"
    )
    assert bad[3].evidence.startswith(
        "Open: RBM, overlapping (DVAE++): mnist_static, 2 nonlinear - mnist_static, 1 nonlinear -0.10"
    )


def test_every_table_with_claims_compares_its_own_cells() -> None:
    """Every claim of the paper has comparisons, the paper's own numbers support most, and bits count the other way."""
    for table, stated in STATED.items():
        cells = paper.cells(table)
        for text, pairs in stated(cells):
            assert pairs and {cell for pair in pairs for cell in pair} <= set(cells), text
            printed = [(a, b) for a, b in pairs if a.value is not None and b.value is not None]
            gains = [(b.value - a.value) if a.in_bits else (a.value - b.value) for a, b in printed]  # type: ignore[operator]
            assert sum(gain >= 0 for gain in gains) >= len(gains) / 2, text


def test_networks_of_two_sizes_are_not_compared() -> None:
    cells = {cell.name: cell for cell in paper.cells("table3")}
    rbm, rolfe = (cells[f"table3/{method}/dataset=caltech"] for method in ("rbm", "rolfe"))
    small = _record(rolfe, -90.0).model_copy(update={"size": "small"})
    assert claims("table3", [_record(rbm, -80.0), small])[1].verdict == "no records yet"
    both = [_record(rbm, -80.0).model_copy(update={"size": "small"}), small]
    held = claims("table3", both)[1]
    assert held.verdict == "holds in 1 of 1 comparisons"
    assert held.supports[0].endswith("(scale 0.06, small nets)")


def test_a_missing_cell_stays_empty_everywhere(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    cell = paper.cells("table2")[0]
    records.write(tmp_path, _record(cell, -90.0))
    text = show.markdown("table2", records.read(tmp_path))
    assert "31 cells without a record" in text and text.count("scale 0.06") == 1
    cli.main(["reproduce", "table2", "--show", "--results", str(tmp_path)])
    assert capsys.readouterr().out.count("scale") >= 1
    for name in ("t.md", "t.png"):
        cli.main(["reproduce", "table2", "--show", "--results", str(tmp_path), "--out", str(tmp_path / name)])
        assert (tmp_path / name).stat().st_size > 500


@pytest.mark.parametrize(("name", "code"), [("t.nosuch", 2), ("file/t.md", 1), ("file/t.png", 1)])
def test_a_place_that_cannot_be_written_is_told_with_a_remedy(
    name: str, code: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").touch()
    records.write(tmp_path, _record(paper.cells("table2")[0], -90.0))
    with pytest.raises(SystemExit) as ended:
        cli.main(["reproduce", "table2", "--show", "--results", str(tmp_path), "--out", str(tmp_path / name)])
    error = capsys.readouterr().err
    assert ended.value.code == code and re.fullmatch(r"dvaepp: cannot write .*[:;] (use|choose) an.*\n", error)


def test_a_seed_given_twice_is_run_once_and_no_seed_is_refused(tmp_path: Path) -> None:
    """Two workers would train in one folder."""
    assert [
        task.recipe.training.seed
        for task in _tasks(tmp_path, "joint/dataset=mnist_static/layers=1/linear=true", seeds=[1, 0, 1])
    ] == [1, 0]
    with pytest.raises(UsageError, match="--seeds needs a number"):
        _tasks(tmp_path, seeds=[])


def test_a_damaged_record_is_named(tmp_path: Path) -> None:
    (tmp_path / "table2.rbm.json").write_text('{"cell": 1}')
    with pytest.raises(UsageError, match=r"table2.rbm.json is no record of a cell: .*; remove it"):
        records.read(tmp_path)


def test_damaged_records_do_not_hide_the_others(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Each is named once, in one line on stderr; the others are shown."""
    records.write(tmp_path, _record(paper.cells("table2")[0], -90.125))
    (tmp_path / "table2.a.json").write_text('{"cell": 1}')
    (tmp_path / "table2.b.json").write_bytes(b"\xff\xfe")
    (tmp_path / "table2.c.json").mkdir()
    cli.main(["reproduce", "table2", "--show", "--results", str(tmp_path)])
    shown = capsys.readouterr()
    assert "-90.1" in shown.out
    lines = shown.err.splitlines()
    assert [f"table2.{x}.json is no record of a cell" in line for x, line in zip("abc", lines, strict=True)] == [
        True
    ] * 3


def test_the_notes_of_records_stand_below_their_table(capsys: pytest.CaptureFixture[str]) -> None:
    cell = paper.cells("table2")[0]
    note = "Trained at [half] the rate"
    found = [_record(cell, -90.0).model_copy(update={"note": note}), _record(cell, -91.0, seed=1)]
    line = f"Note on mnist_static, 1 linear, RBM, overlapping (DVAE++) (scale 0.06, seed 0): {note}"
    text = show.markdown("table2", found)
    assert text.count("Note on") == 1 and f"- {line}\n" in text
    show.terminal("table2", found)
    assert line in capsys.readouterr().out
