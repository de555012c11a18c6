"""The conditions of a run: kept with each checkpoint, and told of when they change."""

from pathlib import Path

import pytest
import torch

from dvaepp.training import checkpoint, train
from dvaepp.training.conditions import changed, conditions
from tests.training.toy import quiet, recipe, stripes


def test_a_manifest_names_versions_kernels_threads_device_and_precision(tmp_path: Path) -> None:
    made = recipe(stripes(tmp_path), steps=2)
    run = train(made, tmp_path / "run", say=quiet)
    found = checkpoint.read(run / "checkpoints").record["conditions"]
    assert found == conditions(made, "cpu")
    assert found["torch"] == str(torch.__version__) and found["precision"] == "float32" and found["device"] == "cpu"
    assert found["threads"] == torch.get_num_threads() and found["processes"] == 1


def test_kernels_that_are_switched_off_are_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DVAEPP_KERNEL", "off")
    assert conditions(recipe(stripes(tmp_path)), "cpu")["kernels"] == "none"


def test_a_resume_under_other_conditions_says_so_in_one_line_and_goes_on(tmp_path: Path) -> None:
    images, said = stripes(tmp_path), []
    run = train(recipe(images, steps=2), tmp_path / "run", say=quiet)
    before = torch.get_num_threads()
    torch.set_num_threads(before + 1)
    try:
        train(recipe(images, steps=4), run, resume=True, say=said.append)
    finally:
        torch.set_num_threads(before)
    told = [line for line in said if "conditions" in line]
    assert len(told) == 1 and f"(threads {before} -> {before + 1})" in told[0]
    said.clear()
    torch.set_num_threads(before + 1)
    try:
        train(recipe(images, steps=6), run, resume=True, say=said.append)
    finally:
        torch.set_num_threads(before)
    assert not [line for line in said if "conditions" in line]


def test_checkpoints_without_conditions_are_compared_with_nothing() -> None:
    now = {"threads": 2, "torch": "2.0"}
    assert changed({"version": "0.1"}, now) == ""
    assert changed({"conditions": {"threads": 1, "torch": "2.0"}}, now).startswith("conditions have changed (threads 1")
