"""What the panels of a run have in common: an axis of steps, lines or a heat map over them, bars per group."""

from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import ListedColormap, to_rgb
from matplotlib.image import AxesImage
from matplotlib.ticker import FuncFormatter, MaxNLocator

from dvaepp.reporting.numbers import Number
from dvaepp.reporting.numbers import steps as step_label
from dvaepp.reporting.panels import COLOURS, SERIES, legend_columns

LINES = 4  # groups that are drawn as lines; more become a heat map
COLUMNS = 160  # of a heat map
# Pictures inside an SVG cannot follow the page from light to dark: full colour, and nothing at zero, suits both.
RAMP = ListedColormap([(*to_rgb("#2a78d6"), alpha) for alpha in np.linspace(0, 1, 256)])
DIVERGING = ListedColormap(
    [(*to_rgb("#d9660f"), alpha) for alpha in np.linspace(1, 0, 128)]
    + [(*to_rgb("#2a78d6"), alpha) for alpha in np.linspace(0, 1, 128)]
)


def step_axis(axes: Axes) -> None:
    axes.set_xlabel("step", loc="right", labelpad=0)
    axes.xaxis.set_major_locator(MaxNLocator(5, steps=[1, 2, 2.5, 5, 10]))
    axes.xaxis.set_major_formatter(FuncFormatter(step_label))
    axes.margins(x=0.02)
    axes.set_xlim(left=0)


def legend(axes: Axes) -> None:
    """Above the plot, where no curve runs."""
    columns = legend_columns(axes.get_legend_handles_labels()[1])
    axes.legend(loc="lower left", bbox_to_anchor=(-0.02, 1), ncols=columns, borderaxespad=0.2)


def error_bar(axes: Axes, x: np.ndarray, y: np.ndarray, error: np.ndarray | None, colour: str, label: str) -> None:
    """A point of an evaluation among curves of training."""
    axes.errorbar(x, y, error, fmt="D", ms=4, capsize=3, color=colour, label=label, clip_on=False, zorder=5)


def over_time(axes: Axes, steps: np.ndarray, values: np.ndarray, names: Sequence[str], unit: str) -> None:
    """One line per group; with many groups a heat map, a row for each. values (records, groups)."""
    if values.shape[1] <= LINES:
        for column, name, colour in zip(values.T, names, SERIES, strict=False):
            axes.plot(steps, column, lw=1.4, color=colour, label=name, marker="o" if len(steps) == 1 else "", ms=4)
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
    colour_bar(axes, image, unit, "max" if values.max() > top else "neither")


def colour_bar(axes: Axes, image: AxesImage, label: str = "", extend: str = "neither") -> None:
    bar = axes.figure.colorbar(image, ax=axes, pad=0.02, aspect=18, extend=extend, label=label)
    assert bar.solids is not None
    bar.solids.set_rasterized(True)  # hundreds of rectangles otherwise, with seams between them
    bar.outline.set_visible(False)


def bars(axes: Axes, names: Sequence[str], values: Sequence[Number], sizes: Sequence[Number] | None = None) -> None:
    """A bar per group, in front of an outline of its size where that is given."""
    places = range(len(names))
    if sizes is not None:
        axes.bar(places, sizes, width=0.62, facecolor="none", edgecolor=COLOURS["muted"], lw=0.8)
    axes.bar(places, values, width=0.62, color=SERIES[0])
    every = -(-len(names) // 12)
    axes.set_xticks(list(places)[::every], list(names)[::every])
    axes.set_xlim(-0.7, max(len(names), 3) - 0.3)


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
