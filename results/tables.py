"""Write docs/results.md from the records in this folder: `python results/tables.py`."""

from pathlib import Path

from dvaepp.reporting import tables

ROOT = Path(__file__).resolve().parent.parent
TOP = """# Results

Generated from `results/*/evaluation.json` by `python results/tables.py`; a test checks that it is current. Every cell
was trained and evaluated by this code. "of schedule" is the share of the full schedule: 2M steps in Table 1, 1M in
Table 2, 400 epochs in Table 3. Schedules shorter than 1 are scaled in proportion and are not comparable with the
paper's numbers. K is the number of importance samples; β = inf is the binary limit.
"""


def page() -> str:
    return f"{TOP}\n{tables.markdown(tables.read(ROOT / 'results'))}"


if __name__ == "__main__":
    (ROOT / "docs" / "results.md").write_text(page())
    print("wrote docs/results.md")
