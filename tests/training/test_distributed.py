"""Two processes against one, with the same global batch: the same model, whoever computed which example."""

import functools
import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from dvaepp import distributed, runs
from dvaepp.kernels import gibbs as kernel
from dvaepp.priors import RBM
from dvaepp.recipes.schema import Recipe
from dvaepp.samplers import gibbs, pcd
from dvaepp.training import checkpoint, loop, train
from tests.training.forks import Fork
from tests.training.toy import quiet, recipe, stripes


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return stripes(tmp_path_factory.mktemp("data"))


def _processes(count: int, made: Recipe, run: Path, *, resume: bool = False, mirror: Path | None = None) -> list[Fork]:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]

    def work(rank: int) -> None:
        job = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": count, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
        os.environ |= {key: str(value) for key, value in job.items()}
        if mirror is not None:
            _write_the_model_of_every_validation(mirror)
        with distributed.joined():
            train(made, run, resume=resume)

    return [Fork(functools.partial(work, rank)) for rank in range(count)]


def _write_the_model_of_every_validation(mirror: Path) -> None:
    """Each process writes what it has, to be compared: the checkpoint is the first one's alone."""
    validate = loop.validate

    def watched(recipe: Recipe, dataset: Any, state: Any, device: str) -> dict[str, Any]:
        tensors = {key: value.contiguous() for key, value in state.model.state_dict().items()}
        save_file(tensors, f"{mirror}.{distributed.rank()}")
        return validate(recipe, dataset, state, device)

    loop.validate = watched


def _run(count: int, made: Recipe, run: Path, **options: Any) -> str:
    processes = _processes(count, made, run, **options)
    assert [process.wait() for process in processes] == [0] * count, [process.text for process in processes]
    return processes[0].text


def _models(run: Path) -> dict[str, torch.Tensor]:
    return checkpoint.under("model", checkpoint.read(run / "checkpoints").tensors)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["table2.rbm", "table2.marginal", "table2.rolfe", "table3.rbm"])
def test_two_processes_equal_one_in_float64(name: str, images: Path, tmp_path: Path) -> None:
    """50 steps with batch norm, chains and, in table3, balanced KL: 1e-12; the processes among themselves bit by bit.

    An odd batch and an odd number of chains make the shards unequal. The gradient of a bias before a batch norm is
    rounding alone, and AdaMax would divide it by its own size: an epsilon above rounding leaves it small.
    """
    odd = {"training__batch_size": 11, "chains__num_chains": 21, "optimizer__epsilon": 1e-3}
    made = recipe(images, name, steps=50, training__precision="float64", **odd)
    _run(2, made, tmp_path / "two", mirror=tmp_path / "mirror")
    train(made, tmp_path / "one", say=quiet)
    one, two = _models(tmp_path / "one"), _models(tmp_path / "two")
    for key, value in one.items():
        torch.testing.assert_close(two[key], value, rtol=1e-12, atol=1e-12, msg=lambda text, key=key: f"{key}: {text}")
    first, second = ((tmp_path / f"mirror.{rank}").read_bytes() for rank in (0, 1))
    assert first == second, "all processes hold the same bits"
    chains = [checkpoint.read(tmp_path / run / "checkpoints").tensors.get("chains") for run in ("one", "two")]
    if chains[0] is not None and chains[1] is not None:
        assert len(chains[0]) == 21 and torch.equal(chains[0], chains[1])
    _metrics_agree(tmp_path / "one", tmp_path / "two", 1e-10)


@pytest.mark.slow
def test_two_processes_equal_one_in_float32_without_chains(images: Path, tmp_path: Path) -> None:
    made = recipe(images, "table2.marginal", steps=50)
    said = _run(2, made, tmp_path / "two")
    assert "50 steps, 2 processes" in said
    train(made, tmp_path / "one", say=quiet)
    two = _models(tmp_path / "two")
    for key, value in _models(tmp_path / "one").items():
        torch.testing.assert_close(two[key], value, rtol=1e-5, atol=1e-5)


@pytest.mark.slow
def test_a_run_goes_on_with_another_number_of_processes(images: Path, tmp_path: Path) -> None:
    """Two processes, then one, then two: the model of an unbroken run of one."""
    lengths = (20, 40, 60)
    made = [recipe(images, steps=n, training__precision="float64", training__validate_every=1.0) for n in lengths]
    _run(2, made[0], tmp_path / "several")
    _run(1, made[1], tmp_path / "several", resume=True)
    _run(2, made[2], tmp_path / "several", resume=True)
    for each in made:
        train(each, tmp_path / "one", resume=each is not made[0], say=quiet)
    several = _models(tmp_path / "several")
    for key, value in _models(tmp_path / "one").items():
        torch.testing.assert_close(several[key], value, rtol=1e-12, atol=1e-12)


def _metrics_agree(a: Path, b: Path, tolerance: float) -> None:
    first, second = ([json.loads(x) for x in (run / "metrics.jsonl").read_text().splitlines()] for run in (a, b))
    assert len(first) == len(second)
    for mine, other in zip(first, second, strict=True):
        assert mine.keys() == other.keys()
        for key in mine.keys() - {"steps_per_second", "cpu_seconds"}:
            assert other[key] == pytest.approx(mine[key], rel=tolerance, abs=tolerance), (key, mine["step"])


@pytest.mark.slow
def test_a_killed_process_ends_the_job_with_a_clear_message(images: Path, tmp_path: Path) -> None:
    made = recipe(images, steps=10**6, training__checkpoint_minutes=0, training__validate_every=1.0)
    first, second = _processes(2, made, tmp_path / "run")
    first.until(r"^step \d+ saved")
    started = time.monotonic()
    second.send(signal.SIGKILL)
    assert second.wait() == -signal.SIGKILL and first.wait() == 1
    assert time.monotonic() - started < 60
    assert "lost another process of the job" in first.text.splitlines()[-1], first.text
    assert checkpoint.read(tmp_path / "run" / "checkpoints").record["step"] > 0


@pytest.mark.slow
def test_evaluation_over_two_processes_equals_that_of_one(images: Path, tmp_path: Path) -> None:
    train(recipe(images, steps=10), tmp_path / "run", say=quiet)
    alone = runs.evaluate(tmp_path / "run", split="train", samples=7)
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    command = [*torchrun, "-m", "dvaepp", "evaluate", str(tmp_path / "run"), "--split", "train"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run([*command, "--samples", "7", "--json"], capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == alone


@pytest.mark.parametrize("compiled", [True, False])
def test_chains_of_a_shard_take_the_noise_of_their_place(compiled: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if not compiled:
        monkeypatch.setenv("DVAEPP_KERNEL", "-gibbs")
    elif not kernel.available():
        pytest.skip("the kernel cannot be compiled here")
    prior = RBM(9, 7)
    torch.nn.init.normal_(prior.weight, generator=torch.Generator().manual_seed(0))
    whole = pcd.init(prior, 50, torch.Generator().manual_seed(1))
    z = gibbs(prior, whole.z, 5, torch.Generator().manual_seed(2))
    for first, last in ((0, 13), (13, 37), (37, 50)):
        shard = distributed.Shard(first, last, 50)
        start = pcd.init(prior, 50, torch.Generator().manual_seed(1), shard)
        after = pcd.step(prior, start, torch.Generator().manual_seed(2), 5)
        assert torch.equal(after.z, z[first:last])
    elsewhere = gibbs(prior, whole.z[13:37], 5, torch.Generator().manual_seed(2))
    assert not torch.equal(elsewhere, z[13:37]), "without its place the noise would be that of the first chains"
