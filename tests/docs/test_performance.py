"""docs/performance.md and the table of kernels/README.md are what benchmarks/records says."""

import json
import re
from pathlib import Path

import pytest

from benchmarks import page, record
from dvaepp.kernels import policy


def test_pages_are_current() -> None:
    assert page.PAGE.read_text() == page.page(), "run `python -m benchmarks.page`"
    assert page.README.read_text() == page.readme(), "run `python -m benchmarks.page`"


def test_every_benchmark_has_a_section_and_a_missing_record_is_said_to_be(tmp_path: Path) -> None:
    empty = page.page(tmp_path)
    assert empty.count("No record yet") == len(record.NAMES) == empty.count("\n### ")
    assert "No record yet" in page.earned(tmp_path)


def test_a_record_is_shown_with_machine_commit_and_date(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(record, "FOLDER", tmp_path)
    rows = [
        {"kernel": "gibbs", "in": "a step", "threads": n, "ms with all": 10.0, "slower without it by": by}
        for n, by in ((1, 0.5), (2, 0.25))
    ]
    rows += [{**row, "in": "another", "slower without it by": 0.01} for row in rows]
    record.save("kernels", {"rows": rows})
    saved = json.loads((tmp_path / "kernels.json").read_text())
    shown = page.page(tmp_path)
    for fact in (saved["date"], saved["commit"], saved["machine"]["processor"], "| gibbs | a step | 1 | 10 | 0.5 |"):
        assert fact in shown
    assert shown.count("No record yet") == len(record.NAMES) - 1
    assert "| `gibbs` | a step | +50% | +25% | kept |" in page.earned(tmp_path)


def test_the_table_of_kernels_names_each_of_them() -> None:
    text = page.README.read_text()
    assert all(f"\n| `{kernel}` | " in text for kernel in policy.KERNELS)


def test_every_row_of_a_table_has_as_many_cells_as_its_header() -> None:
    header, _, row = page.table([{"bias, largest |z|": 2.5, "unbiased": True}]).splitlines()
    assert len(re.split(r"(?<!\\)\|", header)) == len(re.split(r"(?<!\\)\|", row)) == 4


@pytest.mark.parametrize("path", sorted(record.FOLDER.glob("*.json")), ids=lambda path: path.stem)
def test_a_record_names_no_place_of_the_machine_that_made_it(path: Path) -> None:
    assert not re.search(r'"/\w', path.read_text())
