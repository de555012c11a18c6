"""Models that come with the library: found by name in every command, behind every path, and never written to."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import dvaepp
from dvaepp import pretrained, runs
from dvaepp.cli import main
from dvaepp.errors import UsageError

ROOT = Path(__file__).parents[1]


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In an empty folder, so that no path is in the way of a name."""
    monkeypatch.chdir(tmp_path)


def _files(name: str) -> dict[str, int]:
    return {str(path): path.stat().st_mtime_ns for path in pretrained.folder(name).rglob("*")}


@pytest.mark.parametrize("name", pretrained.names())
def test_shipped_models_load_by_name_and_are_small(name: str) -> None:
    """Each with its evaluation, at most 5 MB; its samples are digits with ink."""
    assert sum(path.stat().st_size for path in pretrained.folder(name).rglob("*") if path.is_file()) <= 5e6
    assert pretrained.evaluation(name)["log_likelihood"] > -90
    images = dvaepp.load(name).sample(4, torch.Generator().manual_seed(0))
    assert images.shape == (4, 1, 28, 28) and 0.03 < images.mean().item() < 0.35


def test_a_path_wins_over_a_name(tmp_path: Path) -> None:
    runs.export("mnist-rbm-2layers", "mnist-rbm")
    assert dvaepp.load("mnist-rbm").model.num_units == 400
    (tmp_path / "mnist-rbm" / "recipe.json").unlink()
    with pytest.raises(UsageError, match="mnist-rbm is not a run directory: it has no recipe.json"):
        dvaepp.load("mnist-rbm")


@pytest.mark.parametrize("arguments", [["sample", "mnist"], ["compare", "mnist"], ["figure", "rbm", "mnist"]])
def test_an_unknown_name_lists_the_known_ones(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main(arguments)
    error = capsys.readouterr().err
    assert caught.value.code == 2 and error.count("\n") == 1
    assert error.startswith("dvaepp: mnist is not a run directory") and ", ".join(pretrained.names()) in error


def test_a_shipped_model_is_compared_after_an_export(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["compare", "mnist-rbm"])
    assert "dvaepp export mnist-rbm --out DIR, then dvaepp evaluate DIR" in capsys.readouterr().err


def test_commands_take_a_name_and_leave_the_shipped_model_alone(capsys: pytest.CaptureFixture[str]) -> None:
    before = _files("mnist-rbm")
    main(["sample", "mnist-rbm", "--rows", "1"])
    main(["figure", "rbm", "mnist-rbm"])
    main(["report", "mnist-rbm"])
    main(["export", "mnist-rbm", "--out", "mine"])
    assert capsys.readouterr().out.splitlines()[2] == "wrote mnist-rbm.html"
    assert "85.20" in Path("mnist-rbm.html").read_text() and Path("samples.png").stat().st_size > 1000
    assert json.loads(Path("mine/evaluation.json").read_text()) == pretrained.evaluation("mnist-rbm")
    assert _files("mnist-rbm") == before


def test_an_evaluation_of_a_shipped_model_is_shown_and_not_written() -> None:
    before, said = _files("mnist-rbm"), list[str]()
    checksum = pretrained.evaluation("mnist-rbm")["data_checksum"]
    x = (torch.rand(2, 1, 28, 28, generator=torch.Generator().manual_seed(0)) < 0.1).byte()
    dataset = dvaepp.data.Dataset("mnist_static", (1, 28, 28), "bernoulli", x, x, x, dynamic=False, checksum=checksum)
    found = runs.evaluate("mnist-rbm", samples=2, data=dataset, num_sweeps=20, say=said.append)
    assert found["num_samples"] == 2 and _files("mnist-rbm") == before
    assert "dvaepp export mnist-rbm" in said[-1]


def test_the_listing_needs_no_torch() -> None:
    code = "import sys; from dvaepp.cli import main; main(['models']); print('torch' in sys.modules)"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.splitlines()[-1] == "False"


def test_the_listing_and_the_page_state_the_numbers_of_the_files(capsys: pytest.CaptureFixture[str]) -> None:
    main(["models"])
    listed = capsys.readouterr().out.splitlines()
    page = (ROOT / "docs/models.md").read_text()
    assert [line.split()[0] for line in listed] == pretrained.names() == re.findall(r"^\| `([\w-]+)`", page, re.M)
    for name, line in zip(pretrained.names(), listed, strict=True):
        found = json.loads((pretrained.folder(name) / "evaluation.json").read_text())
        number = f"{found['log_likelihood']:.2f} ± {found['standard_error']:.2f}"
        row = next(row for row in page.splitlines() if row.startswith(f"| `{name}`"))
        assert number in line and number in row and f"| {found['num_samples']} |" in row
