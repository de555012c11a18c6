"""The commands around a run, end to end on a small model: train, evaluate, encode, sample, reconstruct, load."""

import json
import math
import re
import resource
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch

import dvaepp
from dvaepp import runs
from dvaepp.cli import main
from dvaepp.errors import UsageError
from tests.training.forks import Fork
from tests.training.toy import halves


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return halves(tmp_path_factory.mktemp("data"))


@pytest.fixture(scope="module")
def run(images: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    run = tmp_path_factory.mktemp("runs") / "run"
    changes = [f"data.path={images}", "model.groups=[4,4]", "training.steps=300", "training.validate_every=0.5"]
    changes += ["chains.num_chains=50", "chains.num_sweeps=5", "training.kl_warmup=0", "optimizer.warmup=0"]
    main(["train", "table2.rbm", "layers=2", "linear=false", "--run-dir", str(run), *_sets(changes)])
    return run


def _sets(changes: list[str]) -> list[str]:
    return [part for change in changes for part in ("--set", change)]


def test_a_run_directory_holds_what_the_contract_says(run: Path) -> None:
    assert json.loads((run / "recipe.json").read_text())["model"]["groups"] == [4, 4]
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert all("step" in line for line in lines) and lines[-1]["step"] == 300
    names = {(p.name.partition("-")[0].removesuffix(".json"), p.suffix) for p in (run / "checkpoints").iterdir()}
    assert names == {("best", ".json"), ("step", ".json"), ("step", ".safetensors")}
    assert (run / "samples" / "samples.png").read_bytes().startswith(b"\x89PNG")


def test_evaluate_prints_and_writes_the_same_object(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    main(["evaluate", str(run), "--samples", "50", "--json"])
    printed = json.loads(capsys.readouterr().out)
    assert printed == json.loads((run / "evaluation.json").read_text())
    assert printed["num_samples"] == 50 and printed["num_images"] == 40 and printed["split"] == "test"
    assert printed["beta"] == "inf" and printed["log_partition"]["method"] == "exact"
    assert printed["bits_per_dim"] == pytest.approx(-printed["log_likelihood"] / (36 * math.log(2)))
    assert -15 < printed["log_likelihood"] < -5 and 0 < printed["standard_error"] < 2
    main(["evaluate", str(run), "--samples", "50", "--limit", "10", "--split", "validation", "--beta", "training"])
    shown = capsys.readouterr()
    assert "10 images" in shown.out and "evaluation.json keeps the better one" in shown.err
    assert json.loads((run / "evaluation.json").read_text()) == printed
    lines = [json.loads(line) for line in (run / "evaluations.jsonl").read_text().splitlines()]
    assert lines[0] == printed and isinstance(lines[1]["beta"], float)


def test_encode_sample_and_reconstruct(run: Path, images: Path, tmp_path: Path) -> None:
    main(["encode", str(run), "--out", str(tmp_path / "bits.npz")])
    bits = np.load(tmp_path / "bits.npz")["bits"]
    assert bits.shape == (40, 8) and bits.dtype == bool
    main(["encode", str(run), "--images", str(images), "--out", str(tmp_path / "all.npz")])
    assert np.load(tmp_path / "all.npz")["bits"].shape == (400, 8)
    for command in (["sample", str(run), "--rows", "2"], ["reconstruct", str(run), "--rows", "2"]):
        main([*command, "--out", str(tmp_path / "x.png")])
        assert (tmp_path / "x.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize("hide", ["left", "random"])
def test_inpaint_tells_how_likely_the_hidden_pixels_are(
    hide: str, run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """One half of these images says what the other is, so the means given it foretell more than those without it."""
    options = ["--rows", "6", "--completions", "4", "--rounds", "40", "--proposals", "4", "--hide", hide]
    main(["inpaint", str(run), *options, "--out", str(tmp_path / "x.png")])
    assert (tmp_path / "x.png").read_bytes().startswith(b"\x89PNG")
    told = re.search(r"hidden pixels: (\S+) nat .*, (\S+) without them", capsys.readouterr().out)
    assert told is not None and float(told[1]) > float(told[2]) + 2
    with pytest.raises(SystemExit) as ended:
        main(["inpaint", str(run), "--rows", "0", "--out", str(tmp_path / "y.png")])
    assert ended.value.code == 2 and not (tmp_path / "y.png").exists()


def test_codes_on_a_full_disk_are_named_and_leave_the_old_file(run: Path, tmp_path: Path) -> None:
    """No file may grow beyond 100 bytes; the codes take more."""
    out = tmp_path / "bits.npz"
    out.write_text("old")

    def encode() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (100, resource.RLIM_INFINITY))
        main(["encode", str(run), "--out", str(out)])

    process = Fork(encode)
    assert process.wait() == 1
    expected = rf"dvaepp: cannot write {out} \(\d+ bytes\): File too large; free some space, then try again\n"
    assert re.fullmatch(expected, process.text), process.text
    assert [path.name for path in tmp_path.iterdir()] == ["bits.npz"] and out.read_text() == "old"


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="the device that is always full is Linux's")
def test_codes_to_a_device_name_it_and_leave_it_a_device(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main(["encode", str(run), "--out", "/dev/full"])
    error = capsys.readouterr().err
    assert caught.value.code == 1 and "cannot write /dev/full" in error and "free some space" in error
    assert Path("/dev/full").is_char_device()


def test_load_gives_a_model_that_knows_its_data(run: Path) -> None:
    model = dvaepp.load(run)
    x = torch.zeros(2, 1, 6, 6)
    x[0, :, :, :3] = x[1, :, :, 3:] = 1
    bits = model.encode(x)
    assert set(bits.unique().tolist()) <= {0.0, 1.0} and not torch.equal(bits[0], bits[1])
    assert ((model.decode(bits) > 0.5) == (x > 0.5)).float().mean() > 0.95
    generator = torch.Generator().manual_seed(0)
    samples = model.sample(50, generator)
    assert samples.shape == (50, 1, 6, 6)
    whole = (samples[:, 0, :, :3].mean((1, 2)) - samples[:, 0, :, 3:].mean((1, 2))).abs()
    assert (whole > 0.5).float().mean() > 0.5  # most samples are one of the two halves; noise never is
    noise = (torch.rand(2, 1, 6, 6, generator=generator) < 0.5).float()
    assert (model.log_likelihood(x, 50, generator) > model.log_likelihood(noise, 50, generator) + 5).all()
    with pytest.raises(ValueError, match=r"x must be \(batch, 1, 6, 6\)"):
        model.encode(torch.zeros(2, 1, 5, 5))
    with pytest.raises(ValueError, match=r"bits must have shape \(batch, 8\)"):
        model.decode(torch.zeros(2, 7))


@pytest.mark.parametrize(
    "arguments, message",
    [
        (["train", "table2.rmb"], "no recipe called 'table2.rmb'; did you mean table2.rbm"),
        (
            ["train", "demo", "training.steps=30"],
            "no argument 'training.steps'; a field of this name is set by --set training.steps=VALUE",
        ),
        (["train", "table2.rbm", "layer=2"], "takes no argument 'layer'; did you mean layers"),
        (
            ["train", "table2.rbm", "steps=2"],
            "no argument 'steps'; a field of this name is set by --set training.steps=VALUE",
        ),
        (["train", "--set", "training.step=3"], "no field 'training.step'; did you mean training.steps"),
        (["train", "--set", "training.steps=-3"], "training.steps: Input should be greater than or equal to 1"),
        (["train", "--resume"], "--resume needs --run-dir"),
        (["train", "--set", "data.name=mnist_statc"], "mnist_static"),
        (["evaluate", "nosuch"], "nosuch is not a run directory"),
        (["sample", "nosuch"], "nosuch is not a run directory"),
        (["show", "table2.rbm", "linear=maybe"], "linear must be true or false"),
    ],
)
def test_bad_usage_is_one_line_and_exit_code_2(
    arguments: list[str],
    message: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as caught:
        main(arguments)
    error = capsys.readouterr().err
    assert caught.value.code == 2 and message in error and error.count("\n") == 1
    assert not list(tmp_path.iterdir())


def test_evaluating_with_no_samples_is_refused(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main(["evaluate", str(run), "--samples", "0"])
    assert caught.value.code == 2 and "at least 1" in capsys.readouterr().err


def test_recipes_and_show(capsys: pytest.CaptureFixture[str]) -> None:
    main(["recipes"])
    listed = capsys.readouterr().out
    assert all(name in listed for name in ("demo", "table1.joint", "table2.rolfe"))
    main(["show", "table2.rbm", "layers=2", "--set", "training.steps=7"])
    shown = json.loads(capsys.readouterr().out)
    assert shown["training"]["steps"] == 7 and shown["model"]["groups"] == [200, 200]


def test_an_exported_model_is_small_and_the_same(run: Path, tmp_path: Path) -> None:
    main(["export", str(run), "--out", str(tmp_path / "model")])
    a, b = dvaepp.load(run), dvaepp.load(tmp_path / "model")
    for key, value in a.model.state_dict().items():
        assert torch.equal(value, b.model.state_dict()[key])
    sizes = [sum(p.stat().st_size for p in folder.rglob("*.safetensors")) for folder in (tmp_path / "model", run)]
    assert sizes[0] < sizes[1] / 2
    with pytest.raises(UsageError, match="is there already"):
        runs.export(run, tmp_path / "model")


def test_an_export_that_fails_leaves_nothing_and_can_be_tried_again(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(path: Path, data: bytes) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch, pytest.raises(OSError, match="No space left"):
        patch.setattr(runs, "write_durably", full)
        runs.export(run, tmp_path / "new" / "model")
    assert list((tmp_path / "new").iterdir()) == []
    assert dvaepp.load(runs.export(run, tmp_path / "new" / "model")).encode(torch.zeros(1, 1, 6, 6)).shape == (1, 8)


def test_a_recipe_that_is_given_to_a_resumed_run_must_be_its_own(
    run: Path, images: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    copy = shutil.copytree(run, tmp_path / "run")
    common = ["--run-dir", str(copy), "--resume", *_sets([f"data.path={images}", "model.groups=[4,4]"])]
    with pytest.raises(SystemExit) as caught:
        main(["train", "table2.joint", "layers=2", "linear=false", *common])
    error = capsys.readouterr().err.splitlines()[-1]
    assert caught.value.code == 2 and "name: table2.rbm -> table2.joint" in error and "new --run-dir" in error
    changes = ["training.steps=301", "training.validate_every=0.5", "chains.num_chains=50", "chains.num_sweeps=5"]
    changes += ["training.kl_warmup=0", "optimizer.warmup=0"]
    main(["train", "table2.rbm", "layers=2", "linear=false", *common, *_sets(changes)])
    assert json.loads((copy / "recipe.json").read_text())["training"]["steps"] == 301


@pytest.mark.parametrize("command", ["sample", "reconstruct", "inpaint"])
def test_a_picture_is_a_png_and_says_so_before_any_work(
    command: str, run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as caught:
        main([command, str(run), "--out", str(tmp_path / "picture.txt")])
    assert caught.value.code == 2 and "its name has to end in .png" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_a_device_that_cannot_be_used_is_told_in_one_line(run: Path, tmp_path: Path) -> None:
    for call in (lambda: dvaepp.load(run, device="meta"), lambda: dvaepp.train("demo", tmp_path / "x", device="meta")):
        with pytest.raises(UsageError, match="device 'meta' cannot be used here: .*; try cpu") as told:
            call()
        assert "\n" not in str(told.value)
    assert not (tmp_path / "x").exists()


def test_words_that_are_none_of_the_choices_are_refused(run: Path) -> None:
    """Taken for the other choice, they would give another model, or the number of another model."""
    with pytest.raises(UsageError, match="which must be 'best' or 'last', got 'bets'"):
        dvaepp.load(run, which="bets")
    with pytest.raises(UsageError, match="beta must be 'inf' or 'training', got 'infinity'"):
        dvaepp.evaluate(run, beta="infinity", samples=2, limit=2)
