"""The number of log Z in the metrics: of the parameters it is shown with, the same after a resume, or not shown."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from dvaepp import runs
from dvaepp.log_partition import exact
from dvaepp.training import checkpoint, log_z, train
from dvaepp.training.state import build, restore
from dvaepp.training.step import step
from tests.training.toy import quiet, recipe, stripes

LARGE = {
    "model__groups": "[13,13]",
    "training__kl_warmup": 0.5,
    "optimizer__warmup": 0,
    "optimizer__learning_rate": 0.05,
}


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return stripes(tmp_path_factory.mktemp("data"))


def _lines(run: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]


def test_kl_is_shown_with_log_z_of_its_own_parameters_or_not_at_all(images: Path) -> None:
    """13 x 13 units are too many for the exact sum of a step, and few enough for this test's."""
    made = recipe(images, steps=110, **LARGE)
    dataset = runs.dataset_of(made)
    state, errors, held = build(made, dataset), [], []
    for _ in range(made.training.steps):
        before = exact(state.model.boltzmann).value if (state.step + 1) % 50 == 0 else None
        state, _, _ = step(made, dataset, state, "cpu")
        assert log_z.is_known(state) == (state.step in (1, 50, 100, 110))
        if before is not None:
            errors.append(abs(state.log_z - before))
            held.append(abs(26 * torch.log(torch.tensor(2.0)).item() - before))
    assert max(errors) < 0.5 < 2 < max(held)


def test_lines_without_log_z_leave_out_bound_and_kl(images: Path, tmp_path: Path) -> None:
    run = train(recipe(images, steps=60, training__validate_every=0.5, **LARGE), tmp_path / "run", say=quiet)
    lines = [line for line in _lines(run) if "validation_bound" not in line]
    assert all("reconstruction" in line and "chain_energy" in line for line in lines)
    shown = [line["step"] for line in lines if "kl" in line]
    assert shown == [line["step"] for line in lines if "bound" in line and "log_z" in line]
    assert shown == [1, 31, 50, 60]  # after the start and after the validation at 30 it is known for nothing


def test_a_small_side_is_summed_for_every_line(images: Path, tmp_path: Path) -> None:
    run = train(recipe(images, steps=20), tmp_path / "run", say=quiet)
    lines = [line for line in _lines(run) if "validation_bound" not in line]
    assert len(lines) == 20 and all("kl" in line for line in lines)
    assert len({line["log_z"] for line in lines}) > 10


@pytest.mark.slow
def test_walkers_resume_bit_for_bit(images: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Stopped between two looks, with weights that are not all alike."""
    made = recipe(images, steps=70, training__validate_every=1.0, training__checkpoint_minutes=0, **LARGE)
    whole, halves = (tmp_path / name for name in ("whole", "halves"))
    train(made, whole, say=quiet)
    write = checkpoint.write

    def write_then_stop(folder: Path, tensors: Any, record: Any, *rest: Any) -> None:
        write(folder, tensors, record, *rest)
        if record["step"] == 60:
            assert tensors["follower.log_weights"].any()
            raise InterruptedError

    with monkeypatch.context() as patch:
        patch.setattr(checkpoint, "write", write_then_stop)
        with pytest.raises(InterruptedError):
            train(made, halves, say=quiet)
    train(made, halves, resume=True, say=quiet)
    a, b = (checkpoint.read(run / "checkpoints") for run in (whole, halves))
    assert a.record == b.record and a.tensors.keys() == b.tensors.keys()
    assert "follower.prior.weight" in a.tensors
    assert all(torch.equal(tensor, b.tensors[key]) for key, tensor in a.tensors.items())
    shown = ("step", "kl", "bound", "log_z", "validation_bound")
    left, right = ([{key: line.get(key) for key in shown} for line in _lines(run)] for run in (whole, halves))
    assert left == right


def test_checkpoints_without_walkers_get_new_ones_from_their_chains(images: Path, tmp_path: Path) -> None:
    made = recipe(images, steps=2, training__validate_every=1.0, **LARGE)
    run = train(made, tmp_path / "run", say=quiet)
    saved = checkpoint.read(run / "checkpoints")
    tensors = {name: tensor for name, tensor in saved.tensors.items() if not name.startswith("follower")}
    record = {name: value for name, value in saved.record.items() if not name.startswith("log_z_")}
    state = restore(build(made, runs.dataset_of(made)), saved._replace(tensors=tensors, record=record))
    assert state.follower is not None and state.follower.log_z == state.log_z == saved.record["log_z"]


def test_training_does_not_depend_on_how_often_log_z_is_looked_at(
    images: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The walkers draw from a generator of their own."""
    made = recipe(images, steps=100, **LARGE)
    dataset = runs.dataset_of(made)

    def parameters(between: int) -> list[torch.Tensor]:
        monkeypatch.setattr(log_z, "FEWEST_STEPS", between)
        state = build(made, dataset)
        for _ in range(12):
            state, _, _ = step(made, dataset, state, "cpu")
        assert state.log_z_step == 12 // between * between - (between < 12)
        return [p.detach() for p in state.model.parameters()]

    assert all(torch.equal(a, b) for a, b in zip(parameters(50), parameters(3), strict=True))
