"""`evaluate` tests its log Z with the bits of the images it evaluates."""

import json
from pathlib import Path

import pytest

from dvaepp import log_partition, runs
from dvaepp.cli import main
from dvaepp.errors import UsageError
from tests.training.toy import halves


def test_evaluate_compares_starts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run, images = tmp_path / "run", halves(tmp_path)
    changes = [f"data.path={images}", "model.groups=[4,4]", "training.steps=20", "chains.num_chains=20"]
    main(["train", "table2.rbm", "layers=2", "--run-dir", str(run), *(p for c in changes for p in ("--set", c))])
    exact = runs.evaluate(run, samples=5)["log_partition"]
    assert exact["method"] == "exact" and "starts" not in exact["diagnostics"]
    monkeypatch.setattr(log_partition, "FEASIBLE", 0)  # as if the prior were too large for a sum
    runs.evaluate(run, samples=5)
    found = json.loads((run / "evaluation.json").read_text())["log_partition"]
    starts = found["diagnostics"]["starts"]
    assert found["method"] == "tempering" and found["diagnostics"]["warnings"] == []
    assert starts["num_states"] == 40 and starts["lower_bound"] <= exact["value"] + 1e-6
    assert abs(starts["value"] - exact["value"]) < 5 * starts["standard_error"]
    assert abs(found["value"] - exact["value"]) < 5 * found["standard_error"]


@pytest.mark.parametrize("recipe", ["table2.rbm", "table2.marginal"])
def test_an_option_that_nothing_takes_is_refused(recipe: str, tmp_path: Path) -> None:
    run, images = tmp_path / "run", halves(tmp_path)
    changes = [f"data.path={images}", "model.groups=[4]", "training.steps=2"]
    main(["train", recipe, "--run-dir", str(run), *(p for c in changes for p in ("--set", c))])
    with pytest.raises(UsageError, match="no option 'sampels'"):
        runs.evaluate(run, sampels=5)
    assert not (run / "evaluation.json").exists()
