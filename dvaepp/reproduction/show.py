"""The paper's numbers and this library's side by side: for a terminal, as Markdown, as a plot.

The best record of a cell comes first, the one of the largest network and the longest schedule; shorter schedules are
folded away. A cell without a record is listed with the paper's number alone.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from dvaepp.reproduction import paper, records
from dvaepp.reproduction.claims import claims
from dvaepp.reproduction.measured import Measured, by_scale, measured
from dvaepp.reproduction.paper import Cell
from dvaepp.reproduction.records import Record

COLUMNS = ("", "", "paper", "this library", "difference", "schedule")


def printed(cell: Cell) -> str:
    """The number that the paper prints in a cell; a dash where it has none."""
    if cell.value is None:
        return "-"
    return f"{cell.value:.2f}" + (f" ± {cell.deviation:.2f}" if cell.deviation is not None else "")


def line(cell: Cell, mine: Measured | None) -> tuple[str, ...]:
    """A cell as the fields of COLUMNS; a positive difference means that this library's number is the larger one."""
    if mine is None:
        return cell.row, cell.column, printed(cell), "", "", ""
    difference = "" if cell.value is None else f"{mine.value - cell.value:+.2f}"
    return cell.row, cell.column, printed(cell), mine.number, difference, mine.provenance


def markdown(table: str, found: Sequence[Record]) -> str:
    """One table of the paper: its best records, its claims, and folded away what is shorter or still missing."""
    cells = paper.cells(table)
    ranked = {cell: by_scale(cell, found) for cell in cells}
    best = [line(cell, mine[0]) for cell, mine in ranked.items() if mine]
    older = [line(cell, each) for cell, mine in ranked.items() for each in mine[1:]]
    empty = [line(cell, None)[:3] for cell, mine in ranked.items() if not mine]
    parts = [f"## {paper.TITLES[table]}", _grid(COLUMNS, best)]
    stand_in = sorted({record.dataset for record in found if "stand-in" in record.dataset})
    if stand_in:
        parts.append(f"This library's numbers on {', '.join(stand_in)} are for other pixels than the paper's.")
    if noted := notes(table, found):
        parts.append("\n".join(f"- Note on {note}" for note in noted))
    if judged := claims(table, found):
        parts.append("What the paper claims, and what these records say:")
        parts.append("\n".join(f"- {claim.text}: **{claim.verdict}**. {claim.evidence}".rstrip() for claim in judged))
    if older:
        parts.append(_folded(f"{len(older)} records of shorter schedules", _grid(COLUMNS, older)))
    if empty:
        parts.append(_folded(f"{len(empty)} cells without a record", _grid(COLUMNS[:3], empty)))
    return "\n\n".join(parts) + "\n"


def _grid(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [f"| {' | '.join(columns)} |", f"|{'---|' * len(columns)}"]
    lines += [f"| {' | '.join(text.replace(' ± ', '&nbsp;±&nbsp;') for text in row)} |" for row in rows]
    return "\n".join(lines)


def _folded(summary: str, body: str) -> str:
    return f"<details><summary>{summary}</summary>\n\n{body}\n\n</details>"


def notes(table: str, found: Sequence[Record]) -> list[str]:
    """What a record says beside its numbers, each with the cell and the run that it is about."""
    cells = {cell.name: f"{cell.row}, {cell.column}" for cell in paper.cells(table)}
    noted = [record for record in found if record.note and record.cell in cells]
    return [f"{cells[r.cell]} (scale {r.scale:.3g}, seed {r.seed}): {' '.join(r.note.split())}" for r in noted]


def terminal(table: str, found: Sequence[Record]) -> None:
    from rich.console import Console
    from rich.table import Table

    view = Table(title=paper.TITLES[table], show_lines=False)
    for name in COLUMNS:
        view.add_column(name)
    last = ""
    for cell in paper.cells(table):
        if last and cell.row != last:
            view.add_section()
        for index, mine in enumerate(by_scale(cell, found) or [None]):
            row, column, theirs, *rest = line(cell, mine)
            first = index == 0
            view.add_row("" if row == last or not first else row, *((column, theirs) if first else ("", "")), *rest)
        last = cell.row
    console = Console()
    console.print(view)
    for claim in claims(table, found):
        console.print(f"{claim.text}: {claim.verdict}. {claim.evidence}", highlight=False, soft_wrap=True)
    for note in notes(table, found):
        console.print(f"Note on {note}", highlight=False, soft_wrap=True, markup=False)


def plot(table: str, found: Sequence[Record], out: Path) -> None:
    """The paper's value and this library's best one for every cell that has a record; nats and bits on axes apart."""
    from matplotlib.figure import Figure

    from dvaepp.reporting.figures import write

    pairs = [(cell, mine) for cell in paper.cells(table) if (mine := measured(cell, found)) is not None]
    panels = {
        "log p(x), nats": [(cell, mine) for cell, mine in pairs if not cell.in_bits],
        "bits per dimension": [(cell, mine) for cell, mine in pairs if cell.in_bits],
    }
    panels = {unit: some for unit, some in panels.items() if some} or {"no records yet": []}
    heights = [1 + 0.28 * len(some) for some in panels.values()]
    figure = Figure(figsize=(9, 0.5 + sum(heights)), layout="constrained")
    axes: Any = figure.subplots(len(panels), squeeze=False, height_ratios=heights)[:, 0]
    for each, (unit, some) in zip(axes, panels.items(), strict=True):
        _panel(each, some)
        each.set_xlabel(unit, fontsize=8)
    figure.suptitle(f"{paper.TITLES[table]}\nshare of the full schedule in brackets", fontsize=10)
    write(figure, out)


def _panel(axes: Any, pairs: Sequence[tuple[Cell, Measured]]) -> None:
    rows = list(enumerate(reversed(pairs)))
    ours = [(mine.value, y) for y, (_, mine) in rows]
    theirs = [(cell.value, y) for y, (cell, _) in rows if cell.value is not None]
    for y, (cell, mine) in rows:
        axes.plot([mine.value if cell.value is None else cell.value, mine.value], [y, y], color="0.8", zorder=1)
    if theirs:
        axes.scatter(*zip(*theirs, strict=True), color="black", marker="|", s=90, label="paper")
    if pairs:
        spreads = [mine.spread for _, (_, mine) in rows]
        axes.errorbar(*zip(*ours, strict=True), xerr=spreads, fmt="o", color="tab:blue", ms=4, label="this library")
        axes.legend(fontsize=8)
    axes.set_yticks(range(len(rows)), [f"{c.row}, {c.column} {m.effort}" for _, (c, m) in rows], fontsize=8)


def tables_with_records(folder: Path) -> dict[str, list[Record]]:
    """The records of every table that has one of its own; a table may show runs of another table beside them."""
    tables, found = {}, records.read(folder)
    for table in paper.TITLES:
        names = {cell.name for cell in paper.cells(table)}
        some = [record for record in found if record.cell in names]
        if any(record.cell.startswith(f"{table}/") for record in some):
            tables[table] = some
    return tables
