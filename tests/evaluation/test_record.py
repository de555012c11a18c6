"""What an evaluation leaves in a run: of which model, which one is kept, what is refused, and what a failure costs."""

import dataclasses
import json
import math
import resource
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from dvaepp import data, pretrained, runs
from dvaepp.cli import main
from dvaepp.errors import UsageError
from dvaepp.evaluation import record
from dvaepp.recipes.schema import DataConfig
from dvaepp.reproduction import records
from dvaepp.training import checkpoint, train
from dvaepp.training.same_data import check_same_data, known_checksums
from tests.training.toy import quiet, recipe, stripes


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs")
    return train(recipe(stripes(folder), steps=8), folder / "run", say=quiet)


@pytest.fixture
def run(trained: Path, tmp_path: Path) -> Path:
    """A run of one's own that has not been evaluated."""
    return Path(shutil.copytree(trained, tmp_path / "run"))


def _kept(run: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((run / "evaluation.json").read_text())
    return found


def _history(run: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (run / "evaluations.jsonl").read_text().splitlines()]


def _go_on(run: Path, steps: int = 12) -> None:
    """Train further until another model is the best of the run."""
    made = runs.read_recipe(run)
    before = checkpoint.read(run / "checkpoints", "best").digest
    changed = made.model_copy(update={"training": made.training.model_copy(update={"steps": steps})})
    train(changed, run, resume=True, say=quiet)
    if checkpoint.read(run / "checkpoints", "best").digest == before:
        last = (run / "checkpoints" / f"step-{steps:09d}.json").read_bytes()
        (run / "checkpoints" / "best.json").write_bytes(last)


# Which one is kept.


def test_a_result_names_the_checkpoint_it_was_made_from(run: Path) -> None:
    result = runs.evaluate(run, samples=3, say=pytest.fail)
    best = json.loads((run / "checkpoints" / "best.json").read_text())
    assert [file["sha256"] for file in best["files"].values()] == [result["checkpoint_sha256"]]
    assert _kept(run) == result and _history(run) == [result]


@pytest.mark.parametrize(
    "quick",
    [
        {"limit": 5, "samples": 8},
        {"samples": 4},
        {"split": "validation", "samples": 8},
        {"split": "train", "samples": 50},
        {"beta": "training", "samples": 50},
        {"limit": 5, "samples": 500},
    ],
)
def test_a_quick_evaluation_replaces_no_better_one_of_the_same_model(quick: dict[str, Any], run: Path) -> None:
    best = runs.evaluate(run, samples=7, say=pytest.fail)
    said: list[str] = []
    result = runs.evaluate(run, **quick, say=said.append)
    assert _kept(run) == best and _history(run) == [best, result]
    (line,) = said
    assert line.startswith("evaluation.json keeps the better one: test, 60 images, K = 7, beta inf, step")
    assert line.endswith("this one is in evaluations.jsonl")


@pytest.mark.parametrize(
    "first, second",
    [
        ({"limit": 5, "samples": 20}, {"samples": 2}),
        ({"samples": 2}, {"samples": 3}),
        ({"samples": 2}, {"samples": 2}),
        ({"split": "train", "samples": 9}, {"limit": 3, "samples": 1}),
        ({"beta": "training", "samples": 9}, {"limit": 3, "samples": 1}),
    ],
)
def test_a_better_or_equal_one_takes_its_place_and_that_is_said(
    first: dict[str, Any], second: dict[str, Any], run: Path
) -> None:
    said: list[str] = []
    before = runs.evaluate(run, **first, say=pytest.fail)
    after = runs.evaluate(run, **second, say=said.append)
    assert _kept(run) == after and _history(run) == [before, after]
    assert len(said) == 1 and said[0].startswith("evaluation.json now holds this one instead of")


def test_the_headline_of_a_recipe_of_app_i_is_at_the_training_beta(run: Path) -> None:
    text = (run / "recipe.json").read_text()
    made = json.loads(text)
    made["evaluation"]["beta"] = "training"
    (run / "recipe.json").write_text(json.dumps(made))
    headline = runs.evaluate(run, samples=2, say=quiet)
    runs.evaluate(run, samples=9, beta="inf", say=quiet)
    assert _kept(run) == headline and isinstance(headline["beta"], float)


def test_that_of_an_older_model_gives_way_to_any_of_the_present_one(run: Path) -> None:
    old = runs.evaluate(run, samples=20, say=quiet)
    _go_on(run)
    said: list[str] = []
    new = runs.evaluate(run, samples=1, limit=2, say=said.append)
    assert new["checkpoint_sha256"] != old["checkpoint_sha256"]
    assert _kept(run) == new and _history(run) == [old, new] and "instead of one of another checkpoint" in said[0]


def test_an_evaluation_from_before_there_were_digests_is_neither_lost_nor_replaced_by_less(run: Path) -> None:
    better = runs.evaluate(run, samples=20, say=quiet)
    del better["checkpoint_sha256"]
    (run / "evaluation.json").write_text(json.dumps(better))
    (run / "evaluations.jsonl").unlink()
    less = runs.evaluate(run, samples=1, say=quiet)
    assert _kept(run) == better and _history(run) == [better, less]
    for name in ("steps", "data_checksum", "seed"):
        (run / "evaluation.json").write_text(json.dumps({**better, name: 7}))
        assert runs.evaluate(run, samples=1, say=quiet) == _kept(run), f"of another {name}"


def test_a_torn_line_of_the_history_costs_no_other(run: Path) -> None:
    (run / "evaluations.jsonl").write_text('{"log_lik')
    result = runs.evaluate(run, samples=1, say=quiet)
    lines = (run / "evaluations.jsonl").read_text().splitlines()
    assert lines[0] == '{"log_lik' and json.loads(lines[1]) == result


@pytest.mark.parametrize(
    "text", ["", "[1]", '{"a":' * 5000 + "1" + "}" * 5000, '{"split":' + "[" * 900 + "]" * 900 + "}"]
)
def test_what_is_no_evaluation_is_replaced(text: str, run: Path) -> None:
    (run / "evaluation.json").write_text(text)
    assert runs.evaluate(run, samples=1, say=quiet) == _kept(run)


def test_diagnostics_that_are_not_finite_are_written_as_null(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Infinity is no JSON: other readers than Python's stop at it."""
    estimate = runs.log_partition

    def with_infinity(*arguments: Any, **options: Any) -> Any:
        found = estimate(*arguments, **options)
        return found._replace(diagnostics={"r_hat": math.inf, "effective_sample_size": 3.0, "warnings": ["x"]})

    monkeypatch.setattr(runs, "log_partition", with_infinity)
    result = runs.evaluate(run, samples=1, say=quiet)
    for text in ((run / "evaluation.json").read_text(), (run / "evaluations.jsonl").read_text()):
        assert json.loads(text, parse_constant=pytest.fail) == result
    expected = {"r_hat": None, "effective_sample_size": 3.0, "warnings": ["x"]}
    assert result["log_partition"]["diagnostics"] == expected


# What is refused.


def _broken(run: Path, change: Any) -> None:
    """Write the best checkpoint again with other weights."""
    saved = checkpoint.read(run / "checkpoints", "best")
    assert saved.recipe is not None
    change(saved.tensors)
    checkpoint.write(run / "checkpoints", saved.tensors, saved.record, saved.recipe, best=True)


def _nan(tensors: dict[str, torch.Tensor]) -> None:
    tensors["model.prior.weight"][0, 0] = math.nan


def _huge(tensors: dict[str, torch.Tensor]) -> None:
    """Finite weights whose energies are not: float32 ends at 3.4e38."""
    for name, value in tensors.items():
        if name.startswith("model.decoder") and name.endswith("weight"):
            value.fill_(1e38)


@pytest.mark.parametrize(
    "change, message", [(_nan, "weights that are not finite (prior.weight"), (_huge, "nothing was")]
)
def test_a_result_that_is_not_finite_is_refused_and_nothing_is_overwritten(
    change: Any, message: str, run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    runs.evaluate(run, samples=3, say=quiet)
    before = {path: path.read_bytes() for path in run.glob("evaluation*")}
    _broken(run, change)
    with pytest.raises(SystemExit) as caught:
        main(["evaluate", str(run), "--samples", "50"])
    shown = capsys.readouterr()
    assert caught.value.code == 1 and not shown.out
    assert message in shown.err and shown.err.count("\n") == 1 and "learning_rate" in shown.err
    assert {path: path.read_bytes() for path in run.glob("evaluation*")} == before


def test_other_images_than_those_of_training_are_refused(tmp_path: Path) -> None:
    images = stripes(tmp_path)
    run = train(recipe(images, steps=2), tmp_path / "run", say=quiet)
    np.save(images, np.load(images, allow_pickle=False)[::-1])
    with pytest.raises(
        UsageError, match=r"run was trained on stripes with other files \(checksum .*put back what .*npy"
    ):
        runs.evaluate(run, samples=1)
    assert not list(run.glob("evaluation*"))


@pytest.mark.parametrize("name", pretrained.names())
def test_the_same_images_in_another_form_are_the_same_data(name: str) -> None:
    """Static MNIST lies on the disk packed or plain: a model trained on one of them is evaluated on the other."""
    trained_on = checkpoint.last_record(pretrained.folder(name) / "checkpoints")
    assert trained_on is not None
    known = known_checksums(data.files("mnist_static"))
    assert trained_on["data_checksum"] in known and len(known) == 2**3
    images = torch.zeros(1, 1, 28, 28, dtype=torch.uint8)
    found = data.Dataset("mnist_static", (1, 28, 28), "bernoulli", images, images, images, dynamic=False)
    for checksum in known:
        check_same_data(
            "run", trained_on, dataclasses.replace(found, checksum=checksum), DataConfig(name="mnist_static")
        )
    altered = dataclasses.replace(found, checksum="0" * 64)
    with pytest.raises(UsageError, match="give the --data-dir of its training"):
        check_same_data("run", trained_on, altered, DataConfig(name="mnist_static"))


def test_a_stand_in_is_other_data() -> None:
    assert not known_checksums(data.files("omniglot")), "one form has no published sha256, the other is a stand-in"


# One image, and files that cannot be written.


def test_one_image_has_no_error_bar(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    main(["evaluate", str(run), "--samples", "2", "--limit", "1"])
    assert "nats, no error bar (K = 2, one image, " in capsys.readouterr().out
    main(["evaluate", str(run), "--samples", "2", "--limit", "1", "--json"])
    assert json.loads(capsys.readouterr().out)["standard_error"] is None and _kept(run)["standard_error"] is None


@contextmanager
def _no_file_above(size: int) -> Iterator[None]:
    """A disk as full as can be had without one: no file may grow beyond `size` bytes."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


@pytest.mark.parametrize("json_too", [False, True])
def test_a_result_that_cannot_be_written_is_shown_all_the_same(
    json_too: bool, run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    runs.evaluate(run, samples=1, say=quiet)
    before = {path: path.read_bytes() for path in run.glob("evaluation*")}
    capsys.readouterr()
    with _no_file_above(200), pytest.raises(SystemExit) as caught:
        main(["evaluate", str(run), "--samples", "3", *(["--json"] if json_too else [])])
    shown = capsys.readouterr()
    assert caught.value.code == 1 and shown.err.count("\n") == 1
    assert "evaluations.jsonl" in shown.err and "File too large; free some space" in shown.err
    if json_too:
        assert json.loads(shown.out)["num_samples"] == 3
    else:
        assert "log p(x) = " in shown.out and "log Z = " in shown.out
    assert {path: path.read_bytes() for path in run.glob("evaluation*")} == before


def test_a_result_is_shown_before_it_is_written(run: Path) -> None:
    seen: list[bool] = []
    runs.evaluate(run, samples=3, say=quiet, show=lambda result: seen.append((run / "evaluation.json").exists()))
    assert seen == [False] and (run / "evaluation.json").exists()


def test_a_result_that_cannot_be_shown_is_written_all_the_same(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever closed the pipe that it is printed to finds it in the run."""

    def closed(*_: object, **__: object) -> None:
        raise BrokenPipeError

    monkeypatch.setattr("builtins.print", closed)
    with pytest.raises(BrokenPipeError):
        main(["evaluate", str(run), "--samples", "3", "--debug"])
    assert _kept(run)["num_samples"] == 3


# Who shows it.


def test_an_export_takes_only_the_evaluation_of_its_model_along(run: Path, tmp_path: Path) -> None:
    result = runs.evaluate(run, samples=3, say=quiet)
    export = runs.export(run, tmp_path / "same", say=pytest.fail)
    digest = checkpoint.read(export / "checkpoints", "best").digest
    assert _kept(export) == {**result, "checkpoint_sha256": digest} == runs.evaluation_of(export)
    _go_on(run)
    said: list[str] = []
    other = runs.export(run, tmp_path / "other", say=said.append)
    assert not list(other.glob("evaluation*")) and "is of another checkpoint" in said[0] and len(said) == 1


def test_a_record_is_of_the_model_that_the_run_has(run: Path) -> None:
    with pytest.raises(OSError, match="run has no evaluation; dvaepp evaluate"):
        runs.evaluation_of(run)
    result = runs.evaluate(run, samples=3, say=quiet)
    assert records.of_run(run, "table2/x", "paper", 100).log_likelihood == result["log_likelihood"]
    _go_on(run)
    with pytest.raises(OSError, match="no evaluation of this checkpoint, but one of another .*dvaepp evaluate"):
        records.of_run(run, "table2/x", "paper", 100)


@pytest.mark.parametrize("name", pretrained.names())
def test_pretrained_models_have_their_own_evaluation(name: str) -> None:
    """Also without the digest that was added to it later: step, data and seed tell the same."""
    folder, found = pretrained.folder(name), runs.evaluation_of(name)
    assert found["num_images"] == 10_000
    saved, made = checkpoint.read(folder / "checkpoints", "best"), runs.read_recipe(folder)
    model = record.Evaluated(saved.digest, saved.record, made.training.seed)
    older = {key: value for key, value in found.items() if key != "checkpoint_sha256"}
    assert record.belongs(older, model) and not record.belongs({**older, "steps": 1}, model)
