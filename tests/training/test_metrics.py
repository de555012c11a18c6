import json
import sys
import warnings
from pathlib import Path

import pytest

from dvaepp.errors import UsageError
from dvaepp.training.metrics import Metrics, scalars


def test_lists_become_one_scalar_per_group() -> None:
    record = {"step": 3, "bound": -1.5, "kl_per_group": [0.5, 2], "name": "x"}
    assert scalars(record) == {"bound": -1.5, "kl_per_group/1": 0.5, "kl_per_group/2": 2.0}


def test_tensorboard_events_hold_the_numbers_of_the_lines(tmp_path: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # tensorboard's own deprecations
        with Metrics(tmp_path, tensorboard=True) as metrics:
            metrics.write({"step": 1, "bound": -2.0})
            metrics.write({"step": 2, "bound": -1.0})
        from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

        events = EventAccumulator(str(tmp_path / "tensorboard"))
        events.Reload()
    assert [(event.step, event.value) for event in events.Scalars("bound")] == [(1, -2.0), (2, -1.0)]
    lines = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert [(line["step"], line["bound"]) for line in lines] == [(1, -2.0), (2, -1.0)]
    assert 0 <= lines[0]["cpu_seconds"] <= lines[1]["cpu_seconds"]


def test_cpu_seconds_go_on_where_a_resumed_run_began(tmp_path: Path) -> None:
    (tmp_path / "metrics.jsonl").write_text('{"step": 1, "cpu_seconds": 100}\n{"step": 2, "cpu_seconds": 200}\n{"st')
    with Metrics(tmp_path, tensorboard=False, first_step=1) as metrics:
        metrics.write({"step": 2})
    lines = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines] == [1, 2] and 100 <= lines[1]["cpu_seconds"] < 110


def test_without_the_extra_the_remedy_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    with pytest.raises(UsageError, match=r"dvaepp\[tb\]"):
        Metrics(tmp_path, tensorboard=True)
    assert not (tmp_path / "metrics.jsonl").exists()
