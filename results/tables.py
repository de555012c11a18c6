"""Write docs/results.md and its plots from the records in this folder: `python results/tables.py`."""

import json
from pathlib import Path
from typing import Any

from dvaepp.reproduction import show

ROOT = Path(__file__).resolve().parent.parent
IMAGES = ROOT / "docs" / "images"
TOP = """# Results

This page is generated from the records in `results/` by `python results/tables.py`, and a test checks that it is
current. Every number under "this library" was trained and evaluated by this code. "Overlapping (DVAE++)" is the paper's
own method.

- **scale** is the share of the full schedule (2M steps in Table 1, 1M in Table 2, 400 epochs in Table 3). A shorter
  schedule is shortened in proportion, and falls short of the paper's number.
- **K** is the number of importance samples. **±** is the deviation over seeds, or with one seed the standard error (se)
  of the estimate over images.
- **difference** is this library's number minus the paper's: above zero is better in nats, below zero in bits per
  dimension (cifar10).
- A claim of the paper is judged by comparing its two sides at the largest scale that both have; a difference within two
  standard errors is called open.

`dvaepp reproduce table2 --show` prints the same in a terminal.
"""


PAIRED = """## Two models image by image

Most of the spread of log p(x) is between images, and both models of a row were evaluated on the same ones, so that it
drops out of their difference (`dvaepp compare RUN OTHER --json`, kept in `results/paired/`). Above zero the first model
is better. **±** is the standard error of the difference: over images, and with the errors of both log Z.

| model | minus | seed | difference | over images alone | images |
|---|---|---|---|---|---|
"""


def page() -> str:
    found = show.tables_with_records(ROOT / "results")
    parts = [show.markdown(table, records) for table, records in found.items()]
    plots = [f"![{table}](images/results-{table}.png)\n" for table in found]
    return "\n".join([TOP, *(text for pair in zip(parts, plots, strict=True) for text in pair), *_paired()])


def _paired() -> list[str]:
    """The table of paired differences; a file is named MODEL.minus.OTHER.seed=N.json."""
    rows = [row for path in sorted((ROOT / "results" / "paired").glob("*.json")) for row in _rows(path)]
    return [PAIRED + "\n".join(rows) + "\n"] if rows else []


def _rows(path: Path) -> list[str]:
    names, _, seed = path.stem.rpartition(".seed=")
    model, _, other = names.partition(".minus.")
    found: dict[str, dict[str, Any]] = json.loads(path.read_text())
    return [
        f"| {model}{', averaged weights' if weights == 'averaged' else ''} | {other} | {seed} "
        f"| {each['value']:+.3f}&nbsp;±&nbsp;{each['standard_error']:.3f} | ±&nbsp;{each['image_error']:.3f} "
        f"| {each['num_images']} |"
        for weights, each in found.items()
    ]


if __name__ == "__main__":
    (ROOT / "docs" / "results.md").write_text(page())
    for table, records in show.tables_with_records(ROOT / "results").items():
        show.plot(table, records, IMAGES / f"results-{table}.png")
    print("wrote docs/results.md and its plots")
