"""Averaged weights: the mean they claim to be, with statistics and log Z of their own, resumed bit by bit."""

import json
from pathlib import Path

import pytest
import torch

from dvaepp import runs
from dvaepp.log_partition import log_partition
from dvaepp.training import checkpoint, train
from dvaepp.training.average import renew_statistics
from dvaepp.training.state import build
from dvaepp.training.step import step
from tests.training.toy import quiet, recipe, stripes


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return stripes(tmp_path_factory.mktemp("data"))


def test_average_is_the_mean_of_the_weights_and_then_forgets(images: Path) -> None:
    """Against the recursion written out in float64: a mean over the first 4 steps, then 1/4 of each new one."""
    made = recipe(images, steps=20, training__average=0.2)
    state = build(made, runs.dataset_of(made))
    expected = None
    for number in range(1, 8):
        state, *_ = step(made, runs.dataset_of(made), state, "cpu")
        now = [p.detach().double() for p in state.model.parameters()]
        share = 1 / min(number, 4)
        old = now if expected is None else expected
        expected = [a + share * (b - a) for a, b in zip(old, now, strict=True)]
    assert state.average is not None
    for found, mean in zip(state.average.parameters(), expected, strict=True):
        torch.testing.assert_close(found.double(), mean, rtol=1e-5, atol=1e-6)
        assert not found.requires_grad


def test_training_does_not_see_the_average(images: Path, tmp_path: Path) -> None:
    for name, average in (("with", 0.3), ("without", "null")):
        train(recipe(images, training__average=average), tmp_path / name, say=quiet)
    a, b = (checkpoint.read(tmp_path / name / "checkpoints").tensors for name in ("with", "without"))
    assert all(torch.equal(a[name], value) for name, value in b.items())
    assert any(name.startswith("average.") for name in a) and not any(name.startswith("average.") for name in b)


def test_statistics_are_those_of_the_averaged_weights(images: Path) -> None:
    """The first layer sees the images themselves, so that its variance can be computed from all of them at once."""
    dataset = runs.dataset_of(recipe(images))
    made = recipe(images, training__average=0.5, training__batch_size=len(dataset.train))
    state = build(made, dataset)
    for _ in range(5):
        state, *_ = step(made, dataset, state, "cpu")
    assert state.average is not None
    noise = state.generator.get_state()
    before = state.average.encoders[0].norms[0].running_var.clone()
    renew_statistics(made, dataset, state.average, state.step, "cpu")
    net = state.average.encoders[0]
    x = dataset.images("train").flatten(1)
    expected = (x @ net.layers[0].weight.t()).var(0)
    torch.testing.assert_close(net.norms[0].running_var, expected, rtol=1e-4, atol=1e-5)
    assert (before - expected).abs().max() > 1e-2, "the test must see statistics of other weights"
    assert not state.average.training and net.norms[0].momentum == 0.2
    assert torch.equal(state.generator.get_state(), noise)


@pytest.mark.slow
def test_a_resumed_run_has_the_same_average(images: Path, tmp_path: Path) -> None:
    """Bit by bit, averaged weights and their statistics included."""
    made = recipe(images, steps=20, training__average=0.3)
    train(made, tmp_path / "whole", say=quiet)
    half = recipe(images, steps=20, training__average=0.3, training__checkpoint_minutes=0)
    _stopped_at(half, tmp_path / "parts", 13)
    train(half, tmp_path / "parts", say=quiet, resume=True)
    a, b = (checkpoint.read(tmp_path / name / "checkpoints").tensors for name in ("whole", "parts"))
    assert a.keys() == b.keys()
    assert all(torch.equal(a[name], b[name]) for name in a)


def _stopped_at(made, folder: Path, number: int) -> None:  # type: ignore[no-untyped-def]
    """Train until a step has been saved, and leave the run there."""

    class Enough(Exception):
        pass

    def say(line: str) -> None:
        if line == f"step {number} saved":
            raise Enough

    with pytest.raises(Enough):
        train(made, folder, say=say)


def test_validation_tells_both_with_log_z_of_each(images: Path, tmp_path: Path) -> None:
    train(recipe(images, training__average=0.5), tmp_path / "run", say=quiet)
    lines = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    last = [line for line in lines if "validation_bound" in line][-1]
    saved = checkpoint.read(tmp_path / "run" / "checkpoints")
    for prefix, key in (("model", "log_z"), ("average", "average_log_z")):
        model = build(recipe(images), runs.dataset_of(recipe(images))).model
        model.load_state_dict(checkpoint.under(prefix, saved.tensors))
        assert last[key] == pytest.approx(log_partition(model.prior, "exact").value, abs=1e-5)
    assert last["average_validation_log_likelihood"] != last["validation_log_likelihood"]
