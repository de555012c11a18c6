"""Write docs/results.md from the records in this folder: `python results/tables.py`."""

from pathlib import Path

from dvaepp.reproduction import show

ROOT = Path(__file__).resolve().parent.parent
TOP = """# Results

Generated from the records in `results/` by `python results/tables.py`; a test checks that it is current. Every number
of ours was trained and evaluated by this code; a cell without a record is empty. "scale" is the share of the full
schedule (2M steps in Table 1, 1M in Table 2, 400 epochs in Table 3): shorter schedules are shortened in proportion and
fall short of the paper's numbers. K is the number of importance samples; ± is the deviation over seeds, or with one
seed the standard error (se) of the estimate. A claim compares its two sides at the largest scale that both have.
`dvaepp reproduce table2 --show` prints the same.
"""


def page() -> str:
    return f"{TOP}\n{show.page(ROOT / 'results')}"


if __name__ == "__main__":
    (ROOT / "docs" / "results.md").write_text(page())
    print("wrote docs/results.md")
