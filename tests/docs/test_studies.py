"""The measured parts of the pages about codes are what benchmarks/records/studies says."""

import json
from argparse import Namespace
from pathlib import Path

import pytest

from benchmarks.studies import page, plots, quantizer
from benchmarks.studies.record import FOLDER, NAMES


@pytest.mark.parametrize("name", NAMES)
def test_pages_are_current(name: str) -> None:
    assert page.path_of(name).read_text() == page.page(name), "run `python -m benchmarks.studies.page`"


def test_a_missing_record_is_said_to_be(tmp_path: Path) -> None:
    assert all(f"benchmarks.studies.{name} --out" in page.measured(name, tmp_path) for name in NAMES)
    assert plots.draw(tmp_path, tmp_path) == []


def test_records_name_no_place_of_a_machine() -> None:
    for path in FOLDER.glob("*.json"):
        settings = json.loads(path.read_text())["settings"]
        assert not any(isinstance(value, str) and "/" in value for value in settings.values())


def _interval(value: float) -> dict[str, float]:
    return {"value": value, "low": value - 0.01, "high": value + 0.01}


def _row(method: str, bits: int | None, value: float, **ahead: float) -> dict:
    names = {"itq": "ITQ", "pixels": "raw pixels", "rbm": "table2.rbm, codes"}
    return {"method": method, "bits": bits, "precision": _interval(value)} | {
        "ahead of": {names[name]: _interval(gap) for name, gap in ahead.items()},
        "mean_average_precision": None if method.endswith("reranked") else _interval(value),
    }


def test_what_wins_follows_the_intervals(tmp_path: Path) -> None:
    rows = [_row("raw pixels", None, 0.8), _row("ITQ", 16, 0.7), _row("PCA, signs", 16, 0.5)]
    rows += [_row("table2.rbm, codes", 16, 0.705, itq=0.005), _row("table2.marginal, codes", 16, 0.6, rbm=-0.105)]
    rows += [_row("table2.rbm, reranked", 16, 0.75, itq=0.05, pixels=-0.05)]
    about = {"date": "", "commit": "", "machine": {"processor": "", "cores": 2, "torch": ""}, "k": 100, "rows": rows}
    settings = {"dataset": "mnist_dynamic", "queries": 10, "steps": 50_000, "bits": [16]}
    (tmp_path / "retrieval.json").write_text(json.dumps(about | {"settings": settings}))
    text = page.measured("retrieval", tmp_path)
    assert "| ITQ | 0.700 (0.690 to 0.710) |" in text and "5% of the paper's schedule" in text
    assert "table2.rbm, reranked, the best of the models, is ahead of (+0.050, from +0.040 to +0.060) ITQ" in text
    assert "behind (-0.050, from -0.060 to -0.040) raw pixels" in text
    assert "not to be told from (+0.005, from -0.005 to +0.015) ITQ" in text
    assert "the directed one is behind (-0.105, from -0.115 to -0.095) the RBM" in text
    assert [path.name for path in plots.draw(tmp_path, tmp_path)] == ["codes-retrieval.png"]


def test_quantisers_are_told_apart_by_their_spread() -> None:
    def of(psnr: float, entropy: float) -> dict:
        return {"mse": {"mean": 0.01, "sd": 0.0}, "psnr": {"mean": psnr, "sd": 0.1}} | {
            "code entropy": {"mean": entropy, "sd": None}
        }

    text = page.quantizer(
        {"settings": {"epochs": 5, "bits": 10}, "histories": {name: [[], [], []] for name in "abcd"}}
        | {"summary": {"a": of(20.0, 9), "b": of(21.0, 8), "c": of(20.9, 7), "d": "not installed"}}
    )
    assert "b is not clearly ahead of c; c is 0.90 dB ahead of a" in text and "a uses most of the 10 bits" in text
    assert "d: not installed" in text and "mean ± deviation of 3 seeds" in text


def test_seeds_that_a_record_has_are_not_trained_again(tmp_path: Path) -> None:
    out, settings = tmp_path / "quantizer.json", {"bits": 10, "epochs": 5, "seeds": [0, 1], "threads": 1}
    asked = Namespace(out=out, bits=10, epochs=5, limit=None, seeds=[0, 1, 2])
    assert quantizer.earlier(asked) == ({}, [])
    out.write_text(json.dumps({"settings": settings, "histories": {"ours": [[1], [2]]}}))
    assert quantizer.earlier(asked) == ({"ours": [[1], [2]]}, [0, 1])
    with pytest.raises(SystemExit, match="other settings"):
        quantizer.earlier(Namespace(**vars(asked) | {"epochs": 1}))
