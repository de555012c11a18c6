"""Active units of each group of binary global units: those whose q(z=1|x) varies over images."""

from matplotlib.axes import Axes

from dvaepp.reporting import numbers
from dvaepp.reporting.drawing import LINES, bars, over_time
from dvaepp.reporting.panels import Panel
from dvaepp.reporting.run import Run, Series, vectors


def last(run: Run) -> list[int]:
    """Active units per group at the last record that has them, by validation where there was one."""
    for records in (run.validation, run.training):
        found = vectors(records, "active_units")
        if found.values.size:
            return [int(number) for number in found.values[-1]]
    return []


def panels(run: Run) -> list[Panel]:
    """No panels where no binary units were counted."""
    final = last(run)
    if not final:
        return []
    sizes = run.recipe.model.unit_groups
    names = [f"z{index + 1}" for index in range(len(final))]
    over = vectors(run.training, "active_units")
    over = over if over.values.size else vectors(run.validation, "active_units")
    return [_over_time(over, names, sizes), _final(final, names, sizes)]


def _over_time(found: Series, names: list[str], sizes: list[int]) -> Panel:
    def fill(axes: Axes) -> None:
        over_time(axes, found.steps, found.values, names, "active units")
        if len(names) <= LINES:
            axes.set_ylim(0, 1.08 * max([*sizes, float(found.values.max()), 1.0]))

    ends = " to ".join(", ".join(numbers.count(n) for n in found.values[place]) for place in (0, -1))
    return Panel("Active units over time", f"Active units of {', '.join(names)} over training: {ends}.", fill)


def _final(final: list[int], names: list[str], sizes: list[int]) -> Panel:
    fits = len(sizes) == len(final)
    each = [f"{n} {a} of {size}" for n, a, size in zip(names, final, sizes, strict=True)] if fits else map(str, final)
    return Panel(
        "Active units at the end",
        f"Active units at the end: {', '.join(each)}.",
        lambda axes: bars(axes, names, final, sizes if fits else None),
    )
