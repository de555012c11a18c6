"""The one style of all figures, and what their panels have in common: legends, axes of steps, heat maps, bars.

A legend or a colour bar stands above its plot, where no curve runs, in rows of `ROW` points each.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import ListedColormap, to_rgb
from matplotlib.image import AxesImage
from matplotlib.ticker import FuncFormatter, MaxNLocator

from dvaepp.reporting import numbers
from dvaepp.reporting.numbers import Number

Numbers = np.ndarray | Number

COLOURS = {
    "ink": "#1b1f24",
    "muted": "#59636e",
    "rule": "#d8dde3",
    "blue": "#1d66c1",
    "orange": "#b5500b",
    "green": "#18794e",
    "purple": "#7d4cc9",
}
SERIES = [COLOURS[name] for name in ("blue", "orange", "green", "purple")]
DASHES = ["-", "--", "-.", ":"]  # beside the colours, for eyes and printers that see none
RUN_COLOURS = [*SERIES, "#a8326e", "#0f7280", "#7a6a00", "#59636e"]
ROW = 13.5  # points
ABOVE = (-0.02, 1.0)  # where a legend begins, in shares of the plot
STYLE: Any = {
    "font.size": 9,
    "text.color": COLOURS["ink"],
    "axes.edgecolor": COLOURS["muted"],
    "axes.labelcolor": COLOURS["muted"],
    "axes.linewidth": 0.7,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.grid.axis": "y",
    "axes.axisbelow": True,
    "axes.titlesize": 10,
    "axes.formatter.limits": (-4, 5),
    "grid.color": COLOURS["rule"],
    "grid.linewidth": 0.7,
    "xtick.color": COLOURS["muted"],
    "ytick.color": COLOURS["muted"],
    "xtick.major.size": 3,
    "ytick.major.size": 0,
    "ytick.minor.size": 0,
    "legend.frameon": False,
    "legend.fontsize": 8.5,
    "legend.handlelength": 1.7,
    "legend.columnspacing": 1.0,
    "lines.solid_capstyle": "round",
}

LINES = 4  # groups that are drawn as lines; more become a heat map
COLUMNS = 160  # of a heat map
# A picture inside an SVG keeps its colours when the page turns dark: these are transparent at zero, which suits both.
RAMP = ListedColormap([(*to_rgb("#2a78d6"), alpha) for alpha in np.linspace(0, 1, 256)])
DIVERGING = ListedColormap(
    [(*to_rgb("#d9660f"), alpha) for alpha in np.linspace(1, 0, 128)]
    + [(*to_rgb("#2a78d6"), alpha) for alpha in np.linspace(0, 1, 128)]
)


def step_axis(axes: Axes) -> None:
    axes.set_xlabel("step", loc="right", labelpad=0)
    axes.xaxis.set_major_locator(MaxNLocator(5, steps=[1, 2, 2.5, 5, 10]))
    axes.xaxis.set_major_formatter(FuncFormatter(numbers.steps))
    axes.margins(x=0.02)
    axes.set_xlim(left=0)


def legend(axes: Axes) -> None:
    """Above the plot, where no curve runs."""
    columns = _legend_columns(axes.get_legend_handles_labels()[1])
    axes.legend(loc="lower left", bbox_to_anchor=ABOVE, ncols=columns, borderaxespad=0.2)


def lift_legend(axes: Axes, height: float) -> None:
    """Raise a legend by a share of the plot's height, so that it stays under a title that a taller one has raised."""
    if (shown := axes.get_legend()) is not None:
        shown.set_bbox_to_anchor((ABOVE[0], ABOVE[1] + height), transform=axes.transAxes)


def rows_above(axes: Axes) -> int:
    """How many rows a legend or a colour bar takes above a plot."""
    shown = axes.get_legend()
    if shown is None:
        return len(axes.child_axes)
    labels = [text.get_text() for text in shown.get_texts()]
    return -(-len(labels) // _legend_columns(labels))


def _legend_columns(labels: Sequence[str]) -> int:
    """Side by side where they fit into the width of a panel, otherwise two to a row."""
    return len(labels) if sum(map(len, labels)) <= 34 else 2


def error_bar(axes: Axes, x: Numbers, y: Numbers, error: Numbers | None, colour: str, label: str) -> None:
    """A point of an evaluation among curves of training."""
    axes.errorbar(x, y, error, fmt="D", ms=4, capsize=3, color=colour, label=label, clip_on=False, zorder=5)


def over_time(axes: Axes, steps: np.ndarray, values: np.ndarray, names: Sequence[str], unit: str) -> None:
    """One line per group; with many groups a heat map, a row for each. values (records, groups)."""
    if values.shape[1] <= LINES:
        for column, name, colour, dash in zip(values.T, names, SERIES, DASHES, strict=False):
            marker = "o" if len(steps) == 1 else ""
            axes.plot(steps, column, dash, lw=1.4, color=colour, label=name, marker=marker, ms=4)
        axes.set_ylim(bottom=min(0.0, values.min()))
        if len(names) > 1:
            legend(axes)
    else:
        _heat_map(axes, steps, values, names, unit)
    step_axis(axes)


def _heat_map(axes: Axes, steps: np.ndarray, values: np.ndarray, names: Sequence[str], unit: str) -> None:
    edges = np.linspace(0, steps[-1], min(COLUMNS, len(steps)) + 1)
    place = np.clip(np.searchsorted(edges, steps, side="left") - 1, 0, len(edges) - 2)
    table = np.full((values.shape[1], len(edges) - 1), np.nan)
    for column in np.unique(place):
        table[:, column] = values[place == column].mean(0)
    settled = values[steps >= 0.1 * steps[-1]]
    top = max(float(np.quantile(settled, 0.995)), 1e-6)
    image = axes.imshow(
        np.clip(table, 0, top),
        cmap=RAMP,
        vmin=0,
        vmax=top,
        aspect="auto",
        interpolation="none",
        extent=(0, steps[-1], len(names) - 0.5, -0.5),
    )
    axes.grid(False)
    every = -(-len(names) // 9)
    axes.set_yticks(range(0, len(names), every), names[::every])
    colour_bar(axes, image, unit, more=bool(values.max() > top))


def colour_bar(axes: Axes, image: AxesImage, unit: str = "", more: bool = False) -> None:
    """Above the plot, so that plots with and without one have the same width: lowest value, colours, highest value."""
    low, high = map(numbers.rough, image.get_clim())
    place = axes.inset_axes((0.16, 1.03, 0.3, 0.05))
    bar = axes.figure.colorbar(image, cax=place, orientation="horizontal", ticks=[])
    assert bar.solids is not None
    bar.solids.set_rasterized(True)  # hundreds of rectangles otherwise, with seams between them
    bar.outline.set_visible(False)
    text: Any = {"transform": axes.transAxes, "va": "center", "fontsize": 8.5}
    axes.text(0.14, 1.055, low, ha="right", **text)
    axes.text(0.48, 1.055, f"{high} {unit}{' and more' if more else ''}", ha="left", **text)


def bars(axes: Axes, names: Sequence[str], values: Sequence[Number], sizes: Sequence[Number] | None = None) -> None:
    """A bar per group, in front of an outline of its size where that is given."""
    places = range(len(names))
    if sizes is not None:
        axes.bar(places, sizes, width=0.62, facecolor="none", edgecolor=COLOURS["muted"], lw=0.8)
    axes.bar(places, values, width=0.62, color=SERIES[0])
    every = -(-len(names) // 12)
    axes.set_xticks(list(places)[::every], list(names)[::every])
    room = max(0, 3 - len(names)) / 2  # one bar alone is not as wide as the plot
    axes.set_xlim(-0.7 - room, len(names) - 0.3 + room)


def focus(axes: Axes, curves: Sequence[tuple[np.ndarray, np.ndarray]]) -> None:
    """Choose the vertical range by what came after the first tenth of each curve: the start dwarfs the rest."""
    settled = [values[steps >= 0.1 * steps[-1]] for steps, values in curves if len(steps)]
    if not settled:
        return
    low = min(min(float(np.quantile(values, 0.02)), float(values[-1])) for values in settled)
    high = max(float(values.max()) for values in settled)
    if high > low:
        room = 0.06 * (high - low)
        axes.set_ylim(low - room, high + room)


def plain(text: str) -> str:
    """A label as it is: matplotlib reads $ as mathematics and hides labels that start with an underscore."""
    text = text.replace("$", r"\$")
    return f"\u200b{text}" if text.startswith("_") else text
