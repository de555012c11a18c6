"""docs/results.md is what results/ says."""

import runpy
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def test_results_page_is_current() -> None:
    page = runpy.run_path(str(ROOT / "results" / "tables.py"))["page"]()
    assert (ROOT / "docs" / "results.md").read_text() == page, "run `python results/tables.py`"


def test_results_page_has_every_record() -> None:
    page = (ROOT / "docs" / "results.md").read_text()
    rows = [line for line in page.splitlines() if line.startswith("| table") or line.startswith("| ablations")]
    assert len(rows) == len(list((ROOT / "results").glob("*/evaluation.json"))) > 0
