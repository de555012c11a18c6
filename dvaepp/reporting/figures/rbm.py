"""The Boltzmann prior of a trained model: couplings, their singular values, biases, its chains over training, log Z."""

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator

from dvaepp.priors.base import BoltzmannPrior
from dvaepp.reporting import numbers
from dvaepp.reporting.drawing import COLOURS, DIVERGING, SERIES, colour_bar, error_bar, legend, step_axis
from dvaepp.reporting.panels import Panel
from dvaepp.reporting.run import Record, Run, series

PIXELS = 200  # of a side of the picture of W; more units are averaged


def panels(run: Run) -> list[Panel]:
    """Weights where the model could be loaded and they are finite; chains and log Z where metrics hold them."""
    prior = run.prior
    made = weight_panels(prior) if prior is not None and finite(prior) else []
    return made + over_training(run)


def finite(prior: BoltzmannPrior) -> bool:
    return all(bool(p.isfinite().all()) for p in prior.parameters())


def random_edge(weight: np.ndarray) -> float:
    """The largest singular value of independent entries with the same spread: σ (√rows + √columns)."""
    rows, columns = weight.shape
    return float(weight.std() * (math.sqrt(rows) + math.sqrt(columns)))


class CouplingMatrix(NamedTuple):
    """Couplings as a matrix, and biases by the name of the units that have them.

    Where all couplings run between two sides, as in an RBM, the matrix has a row for each unit of the left side and a
    column for each of the right one; otherwise all units are one side, and the matrix is square and symmetric.
    """

    weight: np.ndarray
    biases: dict[str, np.ndarray]


def parts(prior: BoltzmannPrior) -> CouplingMatrix:
    bias, matrix = (p.detach().cpu().double().numpy() for p in prior.couplings())
    blocks = [block.cpu().numpy() for block in prior.blocks()]
    if len(blocks) != 2:
        return CouplingMatrix(matrix, {"one": bias})
    left, right = blocks
    return CouplingMatrix(matrix[left][:, right], {"left": bias[left], "right": bias[right]})


def weight_panels(prior: BoltzmannPrior) -> list[Panel]:
    weight, biases = parts(prior)
    return [_matrix(weight, list(biases)), _histogram(weight), _singular_values(weight), _biases(biases)]


def _matrix(weight: np.ndarray, sides: Sequence[str]) -> Panel:
    u, _, v = np.linalg.svd(weight, full_matrices=False)
    ordered = weight[np.argsort(u[:, 0])][:, np.argsort(v[0])]
    shown = averaged(averaged(ordered, 0), 1)
    top = max(float(np.quantile(np.abs(shown), 0.995)), 1e-9)

    def fill(axes: Axes) -> None:
        rows, columns = weight.shape
        image = axes.imshow(
            shown.clip(-top, top),
            cmap=DIVERGING,
            vmin=-top,
            vmax=top,
            aspect="auto",
            interpolation="none",
            extent=(0, columns, rows, 0),
        )
        axes.grid(False)
        axes.set(xlabel=f"{sides[-1]} side", ylabel=f"{sides[0]} side")
        colour_bar(axes, image)

    rows, columns = weight.shape
    alt = (
        f"Couplings W between {rows} {sides[0]} and {columns} {sides[-1]} units, ordered along the leading singular "
        f"vectors: from {numbers.nats(weight.min())} to {numbers.nats(weight.max())}."
    )
    return Panel("Couplings W", alt, fill)


def averaged(matrix: np.ndarray, axis: int) -> np.ndarray:
    """At most PIXELS along an axis, each the mean of its neighbours."""
    size = matrix.shape[axis]
    if size <= PIXELS:
        return matrix
    starts = np.linspace(0, size, PIXELS + 1).astype(int)[:-1]
    lengths = np.diff([*starts, size])
    sums = np.add.reduceat(matrix, starts, axis)
    return sums / (lengths[:, None] if axis == 0 else lengths)


def _histogram(weight: np.ndarray) -> Panel:
    def fill(axes: Axes) -> None:
        many = weight.size > 1000
        axes.hist(weight.ravel(), bins=_bins(weight), histtype="stepfilled", color=SERIES[0], log=many)
        axes.set_ylim(bottom=0.7 if many else 0)
        axes.set_xlabel("W")
        axes.xaxis.set_major_locator(MaxNLocator(5))

    alt = (
        f"Histogram of {numbers.count(weight.size)} couplings: mean "
        f"{numbers.nats(weight.mean(), 3)}, standard deviation {numbers.nats(weight.std(), 3)}."
    )
    return Panel("Histogram of the couplings", alt, fill)


def _bins(values: np.ndarray) -> list[float]:
    """Edges of at most 60 bins, fewer for few values."""
    low, high = float(values.min()), float(values.max())
    number = min(60, 4 + round(2 * math.sqrt(values.size)))
    return np.linspace(low, high if high > low else low + 1, number + 1).tolist()


def _singular_values(weight: np.ndarray) -> Panel:
    values, edge = np.linalg.svd(weight, compute_uv=False), random_edge(weight)

    def fill(axes: Axes) -> None:
        axes.plot(
            np.arange(1, len(values) + 1), values, "." if len(values) < 40 else "-", lw=1.6, color=SERIES[0], label="W"
        )
        axes.axhline(edge, ls="--", lw=1, color=COLOURS["orange"], label="a random matrix's largest")
        axes.set_ylim(bottom=0)
        axes.set_xlabel("rank", loc="right", labelpad=0)
        legend(axes)

    above = int((values > edge).sum())
    alt = (
        f"Singular values of W from {numbers.short(values[0])} down to {numbers.short(values[-1])}; {above} of "
        f"{len(values)} exceed {numbers.short(edge)}, the largest of a random matrix with the same spread."
    )
    return Panel("Singular values of W", alt, fill)


def _biases(biases: dict[str, np.ndarray]) -> Panel:
    def fill(axes: Axes) -> None:
        bins = _bins(np.concatenate(list(biases.values())))
        styles: list[dict[str, Any]] = [{"histtype": "stepfilled", "alpha": 0.55}, {"histtype": "step", "lw": 1.4}]
        for (name, side), colour, style in zip(biases.items(), SERIES, styles, strict=False):
            axes.hist(side, bins=bins, color=colour, label=name, **style)
        axes.set_xlabel("bias")
        axes.xaxis.set_major_locator(MaxNLocator(5))
        legend(axes)

    both = [
        f"{name} from {numbers.nats(side.min())} to {numbers.nats(side.max())}, mean {numbers.nats(side.mean())}"
        for name, side in biases.items()
    ]
    title = "Biases of the two sides" if len(biases) > 1 else "Biases"
    return Panel(title, f"Histograms of the biases: {'; '.join(both)}.", fill)


def over_training(run: Run) -> list[Panel]:
    """Mean energy and mean of the persistent chains, and log Z at each validation."""
    plots = [
        ("Mean energy of the chains (nats)", run.training, "chain_energy"),
        ("Mean of the chains' units", run.training, "chain_mean"),
        ("log Z at each validation (nats)", run.validation, "log_z"),
    ]
    kept_chains = any("chain_energy" in record for record in run.training)  # directed priors write log_z = 0
    return [
        _over_time(title, run, records, key)
        for title, records, key in plots
        if kept_chains and series(records, key)[0].size
    ]


def _over_time(title: str, run: Run, records: list[Record], key: str) -> Panel:
    found = series(records, key)

    def fill(axes: Axes) -> None:
        axes.plot(found.steps, found.values, lw=1.2, color=SERIES[0], marker="o" if len(found.steps) < 3 else "", ms=4)
        partition = (run.evaluation or {}).get("log_partition")
        if key == "log_z" and partition and run.evaluation:
            at, error = run.evaluation.get("steps", found.steps[-1]), 2 * partition["standard_error"]
            error_bar(axes, at, partition["value"], error, COLOURS["purple"], "evaluation ± 2 s.e.")
            legend(axes)
        step_axis(axes)

    alt = (
        f"{title}: from {numbers.short(found.values[0])} at step {numbers.count(found.steps[0])} to "
        f"{numbers.short(found.values[-1])} at {numbers.count(found.steps[-1])}."
    )
    return Panel(title, alt, fill)
