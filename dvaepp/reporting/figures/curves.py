"""Training curves: bound, reconstruction, KL, and the schedules of learning rate, β and KL weight γ."""

from collections.abc import Sequence
from itertools import cycle
from typing import NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

from dvaepp.reporting import numbers
from dvaepp.reporting.drawing import COLOURS, RUN_COLOURS, error_bar, focus, legend, plain, step_axis
from dvaepp.reporting.panels import Panel, together
from dvaepp.reporting.run import Record, Run, Series, series


class Curve(NamedTuple):
    """A key of the metrics, the lines it stands on, and how it is drawn; {K} is the number of samples."""

    label: str
    key: str
    validation: bool = False
    colour: str = COLOURS["blue"]
    style: str = "-"


class Plot(NamedTuple):
    title: str
    curves: list[Curve]
    schedule: bool = False
    log: bool = False


ORANGE = COLOURS["orange"]
BOUND = Plot(
    "Bound and log p(x) (nats)",
    [
        Curve("training", "bound"),
        Curve("validation", "validation_bound", True, ORANGE),
        Curve("validation, K = {K}", "validation_log_likelihood", True, COLOURS["green"], "--"),
    ],
)
PLOTS = [
    BOUND,
    Plot(
        "Reconstruction log p(x|ζ) (nats)",
        [Curve("training", "reconstruction"), Curve("validation", "validation_reconstruction", True, ORANGE)],
    ),
    Plot("KL (nats)", [Curve("training", "kl"), Curve("validation", "validation_kl", True, ORANGE)]),
    Plot("Learning rate", [Curve("learning rate", "learning_rate")], schedule=True, log=True),
    Plot("Sharpness β of the smoothing", [Curve("β", "beta")], schedule=True),
    Plot("KL weight γ", [Curve("γ", "kl_weight")], schedule=True),
]


def draw(runs: Sequence[Run]) -> Figure:
    """All runs in the same panels, a colour for each."""
    if len(runs) == 1:
        return together([("", panels(*runs))])
    names = {
        plain(run.name): Line2D([], [], color=colour) for run, colour in zip(runs, cycle(RUN_COLOURS), strict=False)
    }
    styles = {"training": (0.8, "-"), "validation": (1.5, "-"), "validation, K samples": (1.5, "--")}
    lines = {label: Line2D([], [], color=COLOURS["muted"], lw=lw, ls=ls) for label, (lw, ls) in styles.items()}
    return together([("", panels(*runs))], [names, lines])


def panels(*runs: Run) -> list[Panel]:
    """Those that some run has numbers for."""
    return [_panel(plot, runs) for plot in PLOTS if any(_found(plot, run) for run in runs)]


def missing(run: Run) -> list[str]:
    """Titles of the plots that this run has no numbers for."""
    return [plot.title for plot in PLOTS if not _found(plot, run)]


def _found(plot: Plot, run: Run) -> list[tuple[Curve, Series]]:
    samples = run.recipe.training.validation_samples
    pairs = [
        (curve._replace(label=curve.label.format(K=samples)), series(records, curve.key))
        for curve in plot.curves
        for records in [run.validation if curve.validation else run.training]
    ]
    return [(curve, found) for curve, found in pairs if len(found.steps)]


def _panel(plot: Plot, runs: Sequence[Run]) -> Panel:
    def fill(axes: Axes) -> None:
        drawn = []
        for run, own in zip(runs, cycle(RUN_COLOURS), strict=False):
            colour = own if len(runs) > 1 else None
            for curve, found in _found(plot, run):
                _line(axes, plot, curve, found, colour)
                drawn.append(found)
            if plot is BOUND and run.evaluation is not None and "steps" in run.evaluation:
                drawn.append(_evaluation(axes, run.evaluation, colour))
        step_axis(axes)
        if plot.schedule:
            _schedule_range(axes, drawn, plot.log)
        else:
            focus(axes, drawn)
        if len(runs) == 1 and not plot.schedule:
            legend(axes)

    return Panel(plot.title, _describe(plot, runs), fill)


def _line(axes: Axes, plot: Plot, curve: Curve, found: Series, colour: str | None) -> None:
    noisy = not curve.validation and not plot.schedule
    axes.plot(
        found.steps,
        found.values,
        curve.style,
        color=colour or curve.colour,
        lw=0.8 if noisy else 1.5,
        alpha=0.55 if noisy else 1,
        marker="o" if len(found.steps) == 1 else "",
        ms=4,
        label=curve.label,
    )


def _evaluation(axes: Axes, evaluation: Record, colour: str | None) -> Series:
    """log p(x) of the evaluation at the step it was made, with two standard errors either way where it has one."""
    point = series([{"step": evaluation["steps"], **evaluation}], "log_likelihood")
    error = series([{"step": evaluation["steps"], **evaluation}], "standard_error").values
    label = plain(str(evaluation.get("split", "evaluation"))) + (" ± 2 s.e." if len(error) else "")
    error_bar(axes, point.steps, point.values, 2 * error if len(error) else None, colour or COLOURS["purple"], label)
    reach = 2 * error if len(error) else np.zeros(1)
    return Series(np.repeat(point.steps, 2), np.concatenate([point.values - reach, point.values + reach]))


def _schedule_range(axes: Axes, drawn: Sequence[Series], log: bool) -> None:
    low, high = min(found.values.min() for found in drawn), max(found.values.max() for found in drawn)
    if log and low > 0 and high > 2 * low:
        axes.set_yscale("log")
        axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        axes.yaxis.set_minor_locator(NullLocator())
    elif low >= 0:
        axes.set_ylim(0, 1.1 * high or 1)
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: numbers.short(value)))


def _describe(plot: Plot, runs: Sequence[Run]) -> str:
    parts = []
    for run in runs:
        who = f"{run.name}, " if len(runs) > 1 else ""
        for curve, (steps, values) in _found(plot, run):
            start, end = numbers.short(values[0]), numbers.short(values[-1])
            span = f"from {start} at step {numbers.count(steps[0])} to {end} at {numbers.count(steps[-1])}"
            parts.append(f"{who}{curve.label} {span}")
    return f"{plot.title} over training: {'; '.join(parts)}."
