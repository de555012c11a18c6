"""Differences image by image: their error bar, the weights that are compared, and what cannot be compared."""

import json
from pathlib import Path

import numpy as np
import pytest

from dvaepp import cli, runs
from dvaepp.errors import UsageError
from dvaepp.evaluation import paired
from dvaepp.log_partition import log_partition
from dvaepp.training import train
from tests.training.toy import quiet, recipe, stripes


def _evaluation(error: float = 0.0, **changes: object) -> dict:
    base = {"dataset": "d", "data_checksum": "c", "split": "test", "num_images": 400}
    return base | {"log_partition": {"value": 1.0, "standard_error": error} if error else None} | changes


def _written(folder: Path, values: np.ndarray, evaluation: dict, **more: np.ndarray) -> paired.PerImage:
    folder.mkdir()
    paired.write(folder, evaluation, np.arange(len(values)), {"trained": values, **more})
    return paired.read(folder)


def test_what_is_common_to_an_image_drops_out(tmp_path: Path) -> None:
    """Images differ by 30 nats, the models by 0.1 with a spread of 0.5: the error is that of the differences."""
    rng = np.random.default_rng(0)
    common, noise = 30 * rng.normal(size=400), 0.5 * rng.normal(size=400)
    a = _written(tmp_path / "a", common + 0.1 + noise, _evaluation())
    b = _written(tmp_path / "b", common, _evaluation())
    found = paired.difference(a, b)
    assert found.value == pytest.approx(0.1 + noise.mean())
    assert found.standard_error == found.image_error == pytest.approx(noise.std(ddof=1) / 20)


def test_errors_of_log_z_do_not_average_out(tmp_path: Path) -> None:
    a = _written(tmp_path / "a", np.zeros(400), _evaluation(0.3))
    b = _written(tmp_path / "b", np.ones(400), _evaluation(0.4))
    assert paired.difference(a, b) == (-1.0, pytest.approx(0.5), 0.0, 400)


def test_other_images_are_refused(tmp_path: Path) -> None:
    a = _written(tmp_path / "a", np.zeros(400), _evaluation())
    b = _written(tmp_path / "b", np.zeros(400), _evaluation(split="validation"))
    with pytest.raises(UsageError, match="on different images .split test and validation."):
        paired.difference(a, b)
    with pytest.raises(UsageError, match="different images: evaluate both with the same --limit"):
        paired.difference(a, a._replace(indices=a.indices + 1))
    with pytest.raises(UsageError, match="has no evaluation.npz: dvaepp evaluate"):
        paired.read(tmp_path)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("averaged")
    train(recipe(stripes(folder), training__average=0.5), folder / "run", say=quiet)
    runs.evaluate(folder / "run", samples=5, show_progress=False, say=quiet)
    return folder / "run"


def test_both_sets_of_weights_are_evaluated_with_log_z_of_their_own(run: Path) -> None:
    found = json.loads((run / "evaluation.json").read_text())
    for average, part in ((False, found), (True, found["average"])):
        model = runs.load(run, average=average).model
        assert part["log_partition"]["value"] == pytest.approx(log_partition(model.boltzmann, "exact").value)
    images = paired.read(run)
    assert images.log_likelihood["trained"].mean() == pytest.approx(found["log_likelihood"])
    assert images.log_likelihood["averaged"].mean() == pytest.approx(found["average"]["log_likelihood"])
    assert found["average"]["log_likelihood"] != found["log_likelihood"]
    assert len(images.indices) == found["num_images"] and images.evaluation == found


def test_compare_tells_the_difference(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    cli.main(["compare", str(run), "--json"])
    (only,) = (told := json.loads(capsys.readouterr().out))
    found = json.loads((run / "evaluation.json").read_text())
    assert only == "averaged"
    assert told["averaged"]["value"] == pytest.approx(found["average"]["log_likelihood"] - found["log_likelihood"])
    cli.main(["compare", str(run), str(run)])
    trained, averaged = capsys.readouterr().out.splitlines()
    assert trained.startswith(f"trained weights of {run} - {run}: +0.000 ± ") and averaged.startswith("averaged")


def test_one_image_has_no_error_bar_in_json_either(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in "ab":
        _written(tmp_path / name, np.zeros(1), _evaluation())
    cli.main(["compare", str(tmp_path / "a"), str(tmp_path / "b"), "--json"])
    told = json.loads(capsys.readouterr().out, parse_constant=pytest.fail)
    assert told["trained"] == {"value": 0.0, "standard_error": None, "image_error": None, "num_images": 1}


@pytest.mark.parametrize("contents", [b"", b"PK\x03\x04 torn"])
def test_a_damaged_file_is_named_with_its_remedy(
    contents: bytes, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / paired.FILE).write_bytes(contents)
    with pytest.raises(SystemExit) as ended:
        cli.main(["compare", str(tmp_path), str(tmp_path)])
    error = capsys.readouterr().err
    assert ended.value.code == 1 and error.startswith(f"dvaepp: {tmp_path / paired.FILE} cannot be read (")
    assert error.endswith(f": dvaepp evaluate {tmp_path} makes a new one\n") and "--debug" not in error


def test_an_export_without_averaged_weights_is_evaluated_without_them(run: Path, tmp_path: Path) -> None:
    runs.export(run, tmp_path / "out", say=quiet)
    result = runs.evaluate(tmp_path / "out", samples=2, limit=10, show_progress=False, say=quiet)
    assert "average" not in result
    with pytest.raises(UsageError, match="has no averaged weights: train with --set training.average=0.05"):
        runs.load(tmp_path / "out", average=True)
