"""Training in float64, and every command after it, for one model of each kind."""

from pathlib import Path

import pytest
import torch

from dvaepp import runs
from dvaepp.cli import main
from tests.training import toy

NAMES = ["table1.joint", "table1.nvil", "table1.rebar", "table1.concrete", "table2.rbm", "table2.rolfe"]
NAMES += ["table2.marginal", "table3.continuous", "table3.rolfe", "table3.rbm", "table3.rbm_bernoulli"]
NAMES += ["table3.bernoulli"]


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_every_command_works_after_training_in_float64(name: str, tmp_path: Path) -> None:
    images, run = toy.stripes(tmp_path), tmp_path / "run"
    chosen = toy.recipe(images, name, 2, training__precision="float64")
    changes = [f"--set={path}={value}" for path, value in _leaves(chosen.model_dump(mode="json"))]
    main(["train", name, "--run-dir", str(run), *changes])
    assert runs.load(run).dtype == torch.float64
    binary = chosen.model.kind == "feedforward" or chosen.model.global_kind in ("rbm", "bernoulli")
    commands = [["evaluate", "--samples", "3"], ["evaluate", "--samples", "3", "--beta", "training"]]
    commands += [["encode", "--out", str(tmp_path / "bits.npz")]] * binary
    commands += [[c, "--pixels", p, "--out", str(run / f"{c}.png")] for c in _PICTURES for p in ("mean", "drawn")]
    commands += [["report"], ["export", "--out", str(tmp_path / "export")]]
    for command, *options in commands:
        if "training" in options and chosen.smoothing.name in ("binary", "spike_exponential"):
            continue
        main([command, str(run), *options])
    assert runs.load(tmp_path / "export").dtype == torch.float64


_PICTURES = ("sample", "reconstruct")


def _leaves(tree: dict, prefix: str = "") -> list[tuple[str, str]]:
    import json

    found = []
    for key, value in tree.items():
        if isinstance(value, dict):
            found += _leaves(value, f"{prefix}{key}.")
        elif f"{prefix}{key}" not in ("name", "model.kind"):
            found.append((f"{prefix}{key}", json.dumps(value)))
    return found
