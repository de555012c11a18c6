"""Paper and ours side by side: for a terminal, as Markdown, as a plot. A cell without a record stays empty.

Ours is the mean over seeds, ± the deviation over seeds, or with one seed ± the standard error of its estimate. Scale
(share of the full schedule), K and seeds stand beside it; a cell trained at several scales has a line for each.
"""

import math
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from dvaepp import data
from dvaepp.reproduction import paper, records
from dvaepp.reproduction.paper import Cell
from dvaepp.reproduction.records import Record


class Ours(NamedTuple):
    """What the records of a cell say; `spread` is over seeds, or the standard error where there is one seed."""

    value: float
    spread: float
    seeds: int
    scale: float
    num_samples: int
    size: str
    subset: bool

    @property
    def text(self) -> str:
        return f"{self.number} ({self.provenance})"

    @property
    def number(self) -> str:
        sign = "±" if self.seeds > 1 else "± se"
        return f"{self.value:.2f} {sign} {self.spread:.2f}"

    @property
    def provenance(self) -> str:
        marks = [f"scale {self.scale:.2g}", f"K {self.num_samples}", f"{self.seeds} seed{'s' * (self.seeds > 1)}"]
        marks += ["small"] * (self.size == "small") + ["subset of test"] * self.subset
        return ", ".join(marks)


def ours(cell: Cell, found: Sequence[Record], scale: float | None = None) -> Ours | None:
    """Of the cell's records those of the largest scale (or of the one given), full size before small, largest K."""
    mine = [record for record in found if record.cell == cell.name]
    if scale is not None:
        mine = [record for record in mine if math.isclose(record.scale, scale, rel_tol=0.01)]
    if not mine:
        return None
    key = max((record.size == "paper", round(record.scale, 6), record.num_samples) for record in mine)
    mine = [r for r in mine if (r.size == "paper", round(r.scale, 6), r.num_samples) == key]
    values = [record.bits_per_dim if cell.in_bits else record.log_likelihood for record in mine]
    one = mine[0].standard_error
    if cell.in_bits:
        one *= mine[0].bits_per_dim / abs(mine[0].log_likelihood)
    spread = statistics.stdev(values) if len(values) > 1 else one
    small = mine[0]
    name = small.dataset.removesuffix(" (stand-in)")
    subset = name in data.names() and small.num_images < data.sizes(name)[-1]
    return Ours(statistics.mean(values), spread, len(values), small.scale, small.num_samples, small.size, subset)


def by_scale(cell: Cell, found: Sequence[Record]) -> list[Ours]:
    """`ours` at every scale there is a record of, the shortest schedule first."""
    scales = sorted({round(record.scale, 6) for record in found if record.cell == cell.name})
    return [mine for scale in scales if (mine := ours(cell, found, scale)) is not None]


def theirs(cell: Cell) -> str:
    return f"{cell.value:.2f}" + (f" ± {cell.deviation:.2f}" if cell.deviation is not None else "")


def markdown(table: str, found: Sequence[Record]) -> str:
    """Rows as in the paper; in each cell the paper's number, then ours."""
    cells = paper.cells(table)
    columns = list(dict.fromkeys(cell.column for cell in cells))
    lines = [f"## {paper.TITLES[table]}", "", f"| | {' | '.join(columns)} |", f"|---|{'---|' * len(columns)}"]
    for row in dict.fromkeys(cell.row for cell in cells):
        texts = []
        for column in columns:
            match = [cell for cell in cells if (cell.row, cell.column) == (row, column)]
            texts.append(_both(match[0], found) if match else "")
        lines.append(f"| {row} | {' | '.join(texts)} |")
    stand_in = sorted({record.dataset for record in found if "stand-in" in record.dataset})
    if stand_in:
        lines += ["", f"Ours on {', '.join(stand_in)}: other pixels than the paper's."]
    lines += ["", *(f"- {claim.text}: {claim.verdict}" for claim in claims(table, found))]
    lines += [f"- Note on {note}" for note in notes(table, found)]
    return "\n".join(lines) + "\n"


def notes(table: str, found: Sequence[Record]) -> list[str]:
    """What a record says beside its numbers, each with the cell and the run that it is about."""
    cells = {cell.name: f"{cell.row}, {cell.column}" for cell in paper.cells(table)}
    noted = [record for record in found if record.note and record.cell in cells]
    return [f"{cells[r.cell]} (scale {r.scale:.2g}, seed {r.seed}): {' '.join(r.note.split())}" for r in noted]


def _both(cell: Cell, found: Sequence[Record]) -> str:
    lines = [f"paper {theirs(cell)}"]
    for mine in by_scale(cell, found):
        lines += [f"ours {mine.number}", f"({mine.provenance})"]
    return "<br>".join(line.replace(" ± ", "&nbsp;±&nbsp;").replace("se ", "se&nbsp;") for line in lines)


def terminal(table: str, found: Sequence[Record]) -> None:
    from rich.console import Console
    from rich.table import Table

    view = Table(title=paper.TITLES[table], show_lines=False)
    for name in ("", "", "paper", "ours"):
        view.add_column(name)
    last = ""
    for cell in paper.cells(table):
        if last and cell.row != last:
            view.add_section()
        mine = "\n".join(line.text for line in by_scale(cell, found))
        view.add_row("" if cell.row == last else cell.row, cell.column, theirs(cell), mine)
        last = cell.row
    console = Console()
    console.print(view)
    for claim in claims(table, found):
        console.print(f"{claim.text}: {claim.verdict}", highlight=False, soft_wrap=True)
    for note in notes(table, found):
        console.print(f"Note on {note}", highlight=False, soft_wrap=True, markup=False)


class Claim(NamedTuple):
    """A statement of the paper and what our records say about it."""

    text: str
    verdict: str


def claims(table: str, found: Sequence[Record]) -> list[Claim]:
    """The paper's qualitative claims for Table 2, at the largest scale that both sides of a comparison have."""
    if table != "table2":
        return []
    by_name = {cell.name: cell for cell in paper.cells(table)}

    def cell(method: str, dataset: str, layers: int, linear: bool) -> Cell:
        return by_name[f"table2/{method}/dataset={dataset}/layers={layers}/linear={str(linear).lower()}"]

    nets = [(dataset, linear) for dataset in ("mnist_static", "omniglot") for linear in (True, False)]
    directed = [
        (cell("rbm", d, layers, linear), cell(method, d, layers, linear))
        for d, linear in nets
        for layers in (1, 2)
        for method in ("joint", "marginal")
    ]

    def rolfe(layers: int) -> list[tuple[Cell, Cell]]:
        return [(cell("rbm", d, layers, linear), cell("rolfe", d, layers, linear)) for d, linear in nets]

    deeper = [
        (cell(method, d, 2, False), cell(method, d, 1, False))
        for d in ("mnist_static", "omniglot")
        for method in ("rbm", "rolfe", "joint", "marginal")
    ]
    return [
        Claim("An RBM prior beats a directed one of equal size", _verdict(directed, found)),
        Claim("Ours is at least as good as Rolfe's with one layer", _verdict(rolfe(1), found, equal=True)),
        Claim("Ours is at least as good as Rolfe's with two layers", _verdict(rolfe(2), found, equal=True)),
        Claim("Two layers beat one for nonlinear networks", _verdict(deeper, found)),
    ]


def _verdict(pairs: Sequence[tuple[Cell, Cell]], found: Sequence[Record], equal: bool = False) -> str:
    """Of how many pairs the first is better; a difference within two standard errors is called open."""
    holds, fails, undecided, missing = [], [], [], 0
    for better, worse in pairs:
        compared = _compared(better, worse, found)
        if compared is None:
            missing += 1
            continue
        difference, error = compared
        if better.row == worse.row:
            what = f"{better.row}: {better.column} - {worse.column}"
        else:
            what = f"{better.column}: {better.row} - {worse.row}"
        text = f"{what} = {difference:+.2f} ± {error:.2f}"
        if difference > 2 * error:
            holds.append(text)
        elif difference < -2 * error:
            fails.append(text)
        else:
            undecided.append(text)
    if missing == len(pairs):
        return "no records yet"
    good = len(holds) + (len(undecided) if equal else 0)
    parts = [f"holds in {good} of {len(pairs) - missing} comparisons"]
    if fails:
        parts.append(f"Not in {'; '.join(fails)}")
    if undecided:
        parts.append(f"Within two standard errors: {'; '.join(undecided)}")
    if missing:
        parts.append(f"{missing} without records")
    return ". ".join(parts)


def _compared(a: Cell, b: Cell, found: Sequence[Record]) -> tuple[float, float] | None:
    scales = [{round(r.scale, 4) for r in found if r.cell == cell.name} for cell in (a, b)]
    common = scales[0] & scales[1]
    if not common:
        return None
    first, second = (ours(cell, found, max(common)) for cell in (a, b))
    if first is None or second is None:
        return None
    return first.value - second.value, math.hypot(first.spread, second.spread)


def plot(table: str, found: Sequence[Record], out: Path) -> None:
    """The paper's value and ours, at the largest scale, for every cell that has a record."""
    from matplotlib.figure import Figure

    pairs = [(cell, mine) for cell in paper.cells(table) if (mine := ours(cell, found)) is not None]
    figure = Figure(figsize=(7, 1.2 + 0.32 * max(1, len(pairs))), layout="constrained")
    axes: Any = figure.subplots()
    for y, (cell, mine) in enumerate(reversed(pairs)):
        axes.plot([cell.value, mine.value], [y, y], color="0.8", zorder=1)
        axes.scatter(cell.value, y, color="black", marker="|", s=90, label="paper" if y == 0 else None)
        label = "ours" if y == 0 else None
        axes.errorbar(mine.value, y, xerr=mine.spread, fmt="o", color="tab:blue", ms=4, label=label)
    labels = [f"{cell.row}, {cell.column} ({mine.scale:.2g})" for cell, mine in reversed(pairs)]
    axes.set_yticks(range(len(pairs)), labels, fontsize=8)
    axes.set_xlabel("log p(x), nats (bits per dimension for cifar10); scale of the schedule in brackets")
    axes.set_title(paper.TITLES[table], fontsize=10)
    if pairs:
        axes.legend(fontsize=8)
    out.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(out, dpi=150)


def page(folder: Path) -> str:
    """All tables that have a record, as Markdown."""
    found = records.read(folder)
    tables = [table for table in paper.TITLES if any(record.cell.startswith(f"{table}/") for record in found)]
    return "\n".join(markdown(table, [r for r in found if r.cell.startswith(f"{table}/")]) for table in tables)
