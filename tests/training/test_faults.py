"""What happens to runs: signals, kill -9, full disks, second owners, numbers that are not finite."""

import json
import os
import random
import re
import resource
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from dvaepp import cli, recipes, runs
from dvaepp.data import load
from dvaepp.errors import UsageError
from dvaepp.kernels import adamax
from dvaepp.recipes.schema import Recipe
from dvaepp.training import checkpoint, loop, replay, train
from dvaepp.training.clock import Clock, duration
from dvaepp.training.finite import NonFinite, check_finite
from dvaepp.training.lock import RunInUse, owned
from dvaepp.training.signals import Signals, Stopped
from dvaepp.training.state import build
from tests.training.forks import Fork
from tests.training.toy import quiet, recipe, stripes

KILLS = 200 if "DVAEPP_FAULTS" in os.environ else 10


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return stripes(tmp_path_factory.mktemp("data"))


def _start(made: Recipe, run: Path, *, resume: bool = False, before: Callable[[], None] = lambda: None) -> Fork:
    def work() -> None:
        before()
        train(made, run, resume=resume)

    return Fork(work)


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_kill_9_at_any_moment_leaves_a_directory_that_loads(images: Path, tmp_path: Path) -> None:
    """Saving after every step, killed at random moments, resumed each time: at least the last step announced is there.

    One process is killed again and again in the same directory (200 times with DVAEPP_FAULTS=1); each life is cut a
    random time after its first announcement, which covers writing, renaming, dropping and training.
    """
    rng = random.Random(0)
    made = recipe(images, steps=10**6, training__checkpoint_minutes=0, training__validate_every=1.0)
    run, announced = tmp_path / "run", 0
    for life in range(KILLS):
        process = _start(made, run, resume=life > 0)
        announced = int(process.until(r"^step \d+ saved").split()[1])
        time.sleep(rng.random() * 0.1)
        process.send(signal.SIGKILL)
        assert process.wait() == -signal.SIGKILL
        found = [int(number) for number in re.findall(r"^step (\d+) saved\n", process.text, re.M)]
        last = max([announced, *found])
        step = checkpoint.read(run / "checkpoints").record["step"]
        assert step >= last, f"life {life}: announced {last}, found {step}"
        announced = step
    assert announced >= KILLS


@pytest.mark.parametrize("name", ["table2.rbm", "table1.rebar", "table3.rbm"])
@pytest.mark.slow
def test_a_run_stopped_by_sigterm_at_a_random_step_ends_like_an_unbroken_one(
    name: str, images: Path, tmp_path: Path
) -> None:
    """Tensors by torch.equal, metrics but for timings, and the picture of samples; the stop comes at any step."""
    made = recipe(images, name, steps=60, training__validate_every=0.1)
    train(made, tmp_path / "whole", say=quiet)
    process = _start(made, tmp_path / "broken")
    process.until(r"^step 12/")
    time.sleep(random.Random(name).random() / 10)
    process.send(signal.SIGTERM)
    assert process.wait() == 143 and "stopped by a signal at step" in process.text, process.text
    step = checkpoint.read(tmp_path / "broken" / "checkpoints").record["step"]
    assert 12 <= step < 60, "it was stopped in between"
    train(made, tmp_path / "broken", resume=True, say=quiet)
    a, b = (checkpoint.read(tmp_path / run / "checkpoints") for run in ("whole", "broken"))
    assert a.record == b.record and a.tensors.keys() == b.tensors.keys()
    for key, tensor in a.tensors.items():
        assert torch.equal(tensor, b.tensors[key]), key
    assert _metrics(tmp_path / "whole") == _metrics(tmp_path / "broken")
    pictures = [_picture(tmp_path / run) for run in ("whole", "broken")]
    assert pictures[0] == pictures[1]


def _metrics(run: Path) -> list[dict[str, Any]]:
    """All but the timings."""
    records = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    timings = ("steps_per_second", "cpu_seconds")
    return [{key: value for key, value in record.items() if key not in timings} for record in records]


def _picture(run: Path) -> bytes:
    cli.main(["sample", str(run), "--out", str(run / "s.png"), "--rows", "2"])
    return (run / "s.png").read_bytes()


def test_a_signal_cuts_a_long_validation_short_and_the_resumed_run_makes_up_for_it(
    images: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = recipe(images, steps=8)
    train(made, tmp_path / "whole", say=quiet)

    def slow(*_: object) -> None:
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(30)

    started = time.monotonic()
    with monkeypatch.context() as patch:
        patch.setattr(loop, "validate", slow)
        with pytest.raises(SystemExit) as stopped:
            train(made, tmp_path / "broken", say=quiet)
    assert stopped.value.code == 143 and time.monotonic() - started < 20
    train(made, tmp_path / "broken", resume=True, say=quiet)
    assert _metrics(tmp_path / "whole") == _metrics(tmp_path / "broken")


def test_sighup_ends_a_run_with_a_checkpoint_and_sigusr1_only_saves_one(images: Path, tmp_path: Path) -> None:
    said: list[str] = []

    def say(line: str) -> None:
        said.append(line)
        if line.startswith("step 2/"):
            os.kill(os.getpid(), signal.SIGUSR1)
        if line == "step 3 saved":
            os.kill(os.getpid(), signal.SIGHUP)

    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)  # which `nohup` ignores, for the suite as well
    try:
        with pytest.raises(SystemExit) as stop:
            train(recipe(images, steps=20, training__validate_every=0.1), tmp_path / "run", say=say)
    finally:
        signal.signal(signal.SIGHUP, before)
    assert stop.value.code == 129 and any("stopped by a signal at step 4" in line for line in said)
    assert checkpoint.read(tmp_path / "run" / "checkpoints").record["step"] == 4


def test_a_signal_that_was_ignored_before_stays_ignored() -> None:
    """As `nohup` starts a program."""
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with Signals() as signals:
            os.kill(os.getpid(), signal.SIGHUP)
            assert signals.received == 0
    finally:
        signal.signal(signal.SIGHUP, before)


def test_the_time_left_reads_well_and_is_not_told_before_there_is_a_step_to_go_by() -> None:
    shown = {3: "3 s", 89: "89 s", 90: "2 min", 5399: "90 min", 5400: "1.5 h", 360_000: "100.0 h"}
    assert {seconds: duration(float(seconds)) for seconds in shown} == shown
    clock = Clock(700, 1000, 5.0)
    assert clock.left(700) == ""
    clock.started -= 60
    assert clock.left(850) == "60 s left"


@pytest.fixture
def interruptible() -> Iterator[None]:
    """A shell starts what runs in its background with SIGINT ignored, and an ignored signal stays so."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("interruptible")
def test_a_second_sigint_acts_at_once() -> None:
    with Signals() as signals:
        os.kill(os.getpid(), signal.SIGINT)
        assert signals.received == signal.SIGINT
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)
            time.sleep(1)
    with Signals() as signals, pytest.raises(Stopped):
        os.kill(os.getpid(), signal.SIGINT)
        with signals.raising():
            time.sleep(1)


# Resuming.


def test_what_a_run_saved_after_it_went_back_behind_damaged_checkpoints_is_there(images: Path, tmp_path: Path) -> None:
    """Save, damage the two newest, resume, SIGTERM, resume: the second resumption starts where the first was stopped.

    The run goes back to the best checkpoint and writes steps that are lower than those of the damaged files.
    """
    run, folder, best = tmp_path / "run", tmp_path / "run" / "checkpoints", 4
    train(recipe(images, steps=4, training__checkpoint_minutes=0), run, say=quiet)
    early = {path.name: path.read_bytes() for path in folder.glob("step-000000004*")}
    train(recipe(images, steps=8, training__checkpoint_minutes=0), run, resume=True, say=quiet)
    for name, data in early.items():  # as if step 4 had validated best
        (folder / (name if name.endswith(".safetensors") else "best.json")).write_bytes(data)
    newest = sorted(folder.glob("step-*.json"))
    assert [path.stem for path in newest] == ["step-000000007", "step-000000008"]
    for manifest in newest:
        manifest.write_bytes(manifest.read_bytes()[:-3])
    longer = recipe(images, steps=10**6, training__checkpoint_minutes=0)
    process = _start(longer, run, resume=True)
    process.until(r"^step \d+ saved")
    process.send(signal.SIGTERM)
    assert process.wait() == 143, process.text
    assert all(f"{manifest.name} is damaged" in process.text for manifest in newest), process.text
    stopped = int(re.search(r"stopped by a signal at step (\d+); saved", process.text)[1])  # type: ignore[index]
    assert f"resuming at step {best}\n" in process.text and stopped > best
    said: list[str] = []
    assert checkpoint.read(folder, say=said.append).record["step"] == stopped and not said
    again = _start(longer, run, resume=True)
    again.until(rf"^resuming at step {stopped}$")
    again.until(rf"^step {stopped + 1} saved")
    again.send(signal.SIGTERM)
    assert again.wait() == 143, again.text
    assert sorted(path.name for path in folder.glob("*.json.damaged")) == [f"{path.name}.damaged" for path in newest]


def test_an_export_cannot_be_resumed_and_says_why(images: Path, tmp_path: Path) -> None:
    """Nothing is written into it either: it may be the copy that others load."""
    made = recipe(images, steps=4)
    train(made, tmp_path / "run", say=quiet)
    export = runs.export(tmp_path / "run", tmp_path / "export")
    before = sorted(path.name for path in export.rglob("*"))
    with pytest.raises(UsageError, match=r"export is an exported model: .*optimizer.*cannot be resumed.*new --run-dir"):
        train(recipe(images, steps=8), export, resume=True, say=quiet)
    assert sorted(path.name for path in export.rglob("*")) == before


@pytest.mark.parametrize("umask, mode", [(0o022, 0o644), (0o002, 0o664), (0o077, 0o600)])
def test_the_lock_has_the_mode_that_the_umask_gives(umask: int, mode: int, tmp_path: Path) -> None:
    before = os.umask(umask)
    try:
        for _ in range(2):
            with owned(tmp_path / "run"):
                pass
    finally:
        os.umask(before)
    assert {oct(path.stat().st_mode & 0o777) for path in (tmp_path / "run").iterdir()} == {oct(mode)}


def test_a_finished_run_says_so(images: Path, tmp_path: Path) -> None:
    said: list[str] = []
    made = recipe(images, steps=4)
    train(made, tmp_path / "run", say=quiet)
    before = (tmp_path / "run" / "metrics.jsonl").read_bytes()
    train(made, tmp_path / "run", resume=True, say=said.append)
    assert "is finished, at step 4; --set training.steps=N with a larger N extends it" in said[0]
    assert (tmp_path / "run" / "metrics.jsonl").read_bytes() == before


def test_a_changed_recipe_is_refused_with_the_difference(images: Path, tmp_path: Path) -> None:
    train(recipe(images, steps=4), tmp_path / "run", say=quiet)
    changed = recipe(images, steps=4, training__seed=3, optimizer__learning_rate=0.01)
    with pytest.raises(UsageError, match=r"optimizer.learning_rate: 0.003 -> 0.01; training.seed: 0 -> 3"):
        train(changed, tmp_path / "run", resume=True, say=quiet)
    with pytest.raises(UsageError, match="training.steps: 4 -> 3"):
        train(recipe(images, steps=3), tmp_path / "run", resume=True, say=quiet)
    train(recipe(images, steps=6, training__checkpoint_minutes=1), tmp_path / "run", resume=True, say=quiet)
    assert checkpoint.read(tmp_path / "run" / "checkpoints").record["step"] == 6


def test_a_run_killed_before_its_first_checkpoint_is_started_again(images: Path, tmp_path: Path) -> None:
    said: list[str] = []
    made = recipe(images, steps=4)
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "recipe.json").write_text(made.model_dump_json())
    (tmp_path / "run" / "metrics.jsonl").write_text('{"step": 1, "bound": 0}\n{"step": 2, "bo')
    train(made, tmp_path / "run", resume=True, say=said.append)
    assert "no checkpoint yet: starting from step 0" in said[0]
    assert [r["step"] for r in _metrics(tmp_path / "run")] == [1, 2, 2, 3, 4, 4], "nothing of before, nothing twice"


# Numbers that are not finite.


def _poisoned(state: Any) -> Any:
    """A weight of the encoder that is no number."""
    with torch.no_grad():
        next(state.model.encoders[0].parameters())[0, 0] = torch.nan
    return state


@pytest.mark.parametrize("name", ["table2.rbm", "table1.nvil"])
def test_a_loss_that_is_not_finite_stops_the_run_and_can_be_replayed(
    name: str, images: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = recipe(images, name, steps=20, training__checkpoint_minutes=0)
    inner, seen = loop.step, []

    def step(recipe: Recipe, dataset: Any, state: Any, device: str) -> Any:
        seen.append(state.step)
        return inner(recipe, dataset, _poisoned(state) if state.step == 7 else state, device)

    monkeypatch.setattr(loop, "step", step)
    with pytest.raises(NonFinite, match=r"at step 8.*learning_rate may help; dvaepp.training.replay"):
        train(made, tmp_path / "run", say=quiet)
    monkeypatch.undo()
    assert seen == list(range(8)), "not one step more"
    kept = checkpoint.read(tmp_path / "run" / "checkpoints")
    assert kept.record["step"] == 7
    assert all(torch.isfinite(t).all() for t in kept.tensors.values() if t.is_floating_point())
    state, reason = replay(tmp_path / "run")
    assert state.step == 7 and ("nan" in reason or "not finite" in reason)


def test_a_gradient_that_is_not_finite_is_named_before_it_reaches_a_parameter(images: Path) -> None:
    made = recipe(images)
    state = build(made, load("x", None, images))
    for parameter in state.model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    check_finite(state, torch.tensor(1.0))
    state.model.prior.weight.grad[1, 2] = torch.inf
    with pytest.raises(NonFinite, match=r"gradient of prior.weight is not finite at step 1 \(1 tensors\)"):
        check_finite(state, torch.tensor(1.0))
    with pytest.raises(NonFinite, match="the loss is nan"):
        check_finite(state, torch.tensor(float("nan")))


# Disks and owners.


def _limit_file_size() -> None:
    resource.setrlimit(resource.RLIMIT_FSIZE, (9_000, resource.RLIM_INFINITY))


def test_a_full_disk_ends_the_run_with_one_line_and_a_good_checkpoint(images: Path, tmp_path: Path) -> None:
    """The limit lets the recipe and some metrics through but no checkpoint of 20 kB."""
    run = tmp_path / "run"
    train(recipe(images, steps=4), run, say=quiet)
    longer = recipe(images, steps=1000, training__checkpoint_minutes=0)
    process = _start(longer, run, resume=True, before=_limit_file_size)
    assert process.wait() == 1
    last = process.text.strip().splitlines()[-1]
    assert re.search(r"cannot write .*step-.*\(\d+ bytes\): File too large; free some space", last), process.text
    assert checkpoint.read(run / "checkpoints").record["step"] == 4
    assert not list((run / "checkpoints").glob(".*")), "nothing half-written is left"


def test_a_run_directory_that_cannot_be_written_is_told(images: Path, tmp_path: Path) -> None:
    """A file where a folder should be: no user may write below it, not even root."""
    (tmp_path / "file").write_text("")
    with pytest.raises(OSError, match="cannot write into .*file/run: .*choose another --run-dir"):
        train(recipe(images, steps=4), tmp_path / "file" / "run", say=quiet)


@pytest.mark.skipif(os.geteuid() != 0, reason="dropping rights needs root")
def test_a_read_only_run_directory_is_told(images: Path, tmp_path: Path) -> None:
    """As a user who owns nothing: root may write anywhere."""
    (tmp_path / "run").mkdir(mode=0o555)
    for parent in (images.parent, tmp_path, *tmp_path.parents[:3]):
        parent.chmod(0o755)
    process = _start(recipe(images, steps=4), tmp_path / "run", before=lambda: os.setuid(65534))
    assert process.wait() == 1
    assert "Permission denied; choose another --run-dir" in process.text.splitlines()[-1], process.text


def test_one_process_owns_a_run_directory_until_it_ends(images: Path, tmp_path: Path) -> None:
    """The second is told who has it; kill -9 frees it at once."""
    made = recipe(images, steps=10**6, training__checkpoint_minutes=0, training__validate_every=1.0)
    process = _start(made, tmp_path / "run")
    process.until(r"^step \d+ saved")
    with pytest.raises(RunInUse, match=f"in use by process {process.pid} on .* since .*choose another --run-dir"):
        train(made, tmp_path / "run", resume=True, say=quiet)
    process.send(signal.SIGKILL)
    process.wait()
    with owned(tmp_path / "run"):
        pass


def test_recipes_tell_their_differences() -> None:
    a, b = recipes.build("table2.rbm"), recipes.build("table2.rbm", ["layers=2"])
    changes = recipes.differences(a.model_dump(mode="json"), b)
    assert changes["model.groups"] == "model.groups: [200] -> [200, 200]"
    assert recipes.differences(a.model_dump(mode="json"), a) == {}


def test_a_validation_that_was_written_but_not_saved_is_not_there_twice(
    images: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ended between the line of a validation and its checkpoint, with an earlier checkpoint of the same step."""
    made = recipe(images, steps=8, training__checkpoint_minutes=0)
    train(made, tmp_path / "whole", say=quiet)

    def ended(*_: object) -> None:
        raise InterruptedError

    with monkeypatch.context() as patch:
        patch.setattr(loop, "judged", ended)
        with pytest.raises(InterruptedError):
            train(made, tmp_path / "broken", say=quiet)
    assert checkpoint.read(tmp_path / "broken" / "checkpoints").record["step"] == 4
    train(made, tmp_path / "broken", resume=True, say=quiet)
    assert _metrics(tmp_path / "broken") == _metrics(tmp_path / "whole")


def test_other_data_files_are_refused(images: Path, tmp_path: Path) -> None:
    mine = tmp_path / "images.npy"
    mine.write_bytes(images.read_bytes())
    train(recipe(mine, steps=4), tmp_path / "run", say=quiet)
    altered = bytearray(mine.read_bytes())
    altered[-1] ^= 1
    mine.write_bytes(altered)
    with pytest.raises(UsageError, match="was trained on images with other files .*put back what .*images.npy held"):
        train(recipe(mine, steps=6), tmp_path / "run", resume=True, say=quiet)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_every_infinite_or_undefined_number_is_noticed_and_no_large_one(dtype: torch.dtype) -> None:
    largest = torch.finfo(dtype).max
    tensors = [torch.full((n,), largest, dtype=dtype) for n in (1, 15, 16, 17, 1000)]  # their sums overflow
    assert adamax.all_finite(tensors)
    for bad in (float("nan"), float("inf"), -float("inf")):
        for tensor in tensors:
            for place in {0, len(tensor) // 2, len(tensor) - 1}:
                tensor[place] = bad
                assert not adamax.all_finite(tensors)
                tensor[place] = largest
    assert adamax.all_finite(tensors)
