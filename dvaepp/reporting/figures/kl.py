"""KL of each group of latents, over training and at its end. A Boltzmann prior has one KL for all its units."""

from typing import NamedTuple

import numpy as np
from matplotlib.axes import Axes

from dvaepp.reporting import numbers
from dvaepp.reporting.drawing import LINES, bars, over_time
from dvaepp.reporting.panels import Panel
from dvaepp.reporting.run import Run, Series, series, vectors


class KLGroups(NamedTuple):
    """KL (records, groups) at steps (records,), from the lines of "training" or "validation"."""

    names: list[str]
    steps: np.ndarray
    values: np.ndarray
    source: str


def panels(run: Run) -> list[Panel]:
    """No panels where the metrics hold no KL per group; a single group needs no bars."""
    over, end = found(run, "training") or found(run, "validation"), last(run)
    made = [_over_time(over)] if over is not None else []
    return made + ([_final(end)] if end is not None and len(end.names) > 1 else [])


def last(run: Run) -> KLGroups | None:
    return found(run, "validation") or found(run, "training")


def found(run: Run, source: str) -> KLGroups | None:
    """From the list in each record; a single group may stand there as a plain number."""
    records, key = (run.validation, "validation_kl") if source == "validation" else (run.training, "kl")
    names = run.recipe.model.kl_names
    groups = vectors(records, f"{key}_per_group")
    if not groups.values.size and len(names) == 1:
        single = series(records, key)
        groups = Series(single.steps, single.values[:, None])
    if not groups.values.size:
        return None
    width = groups.values.shape[1]
    return KLGroups(names if len(names) == width else [str(n + 1) for n in range(width)], *groups, source)


def _over_time(groups: KLGroups) -> Panel:
    def fill(axes: Axes) -> None:
        over_time(axes, groups.steps, groups.values, groups.names, "nats")
        if len(groups.names) <= LINES:
            settled = groups.values[groups.steps >= 0.1 * groups.steps[-1]]
            axes.set_ylim(min(0.0, settled.min()), 1.08 * max(settled.max(), 1e-6))

    total = groups.values.sum(1)
    alt = (
        f"KL of {len(groups.names)} groups over training: their sum goes from {numbers.short(total[0])} nats at "
        f"step {numbers.count(groups.steps[0])} to {numbers.short(total[-1])} at {numbers.count(groups.steps[-1])}."
    )
    return Panel(f"KL over time ({groups.source}, nats)", alt, fill)


def _final(groups: KLGroups) -> Panel:
    values = groups.values[-1]
    each = ", ".join(f"{name} {numbers.nats(value)}" for name, value in zip(groups.names, values, strict=True))
    step = numbers.count(groups.steps[-1])
    return Panel(
        f"KL at step {step} ({groups.source}, nats)",
        f"KL of each group at step {step}, in nats: {each}.",
        lambda axes: bars(axes, groups.names, values.tolist()),
    )
