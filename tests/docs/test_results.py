"""docs/results.md is what results/ says."""

import runpy
from pathlib import Path

from dvaepp.reproduction import records, show

ROOT = Path(__file__).resolve().parents[2]


def test_results_page_is_current() -> None:
    page = runpy.run_path(str(ROOT / "results" / "tables.py"))["page"]()
    assert (ROOT / "docs" / "results.md").read_text() == page, "run `python results/tables.py`"


def test_results_page_has_every_cell_that_has_a_record() -> None:
    """At every scale: each line of a table that has a schedule is one of them."""
    page = (ROOT / "docs" / "results.md").read_text()
    tables = show.tables_with_records(ROOT / "results")
    expected = [(record.cell, record.scale) for some in tables.values() for record in _distinct(some)]
    lines = [line for line in page.splitlines() if line.startswith("| ") and "scale " in line]
    assert len(lines) == len(expected) > 0
    assert {cell for cell, _ in expected} == {record.cell for record in records.read(ROOT / "results")}


def _distinct(some: list[records.Record]) -> list[records.Record]:
    """One record for each cell and scale, whatever its seed."""
    return list({(record.cell, record.scale): record for record in some}.values())


def test_records_are_whole_and_named_after_what_they_hold() -> None:
    for path in (ROOT / "results").glob("*.json"):
        record = records.Record.model_validate_json(path.read_text())
        assert path.name == record.file
        assert record.recipe["training"]["seed"] == record.seed and len(record.data_checksum) == 64
