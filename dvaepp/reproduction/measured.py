"""What this library measured for a cell of the paper: the mean over seeds at one scale of the schedule."""

import math
import statistics
from collections.abc import Sequence
from typing import NamedTuple

from dvaepp import data
from dvaepp.reproduction.paper import Cell
from dvaepp.reproduction.records import Record


class Measured(NamedTuple):
    """The mean of a cell's records and their spread over seeds; with a single seed the spread is its standard error."""

    value: float
    spread: float
    seeds: int
    scale: float
    num_samples: int
    size: str
    subset: bool

    @property
    def number(self) -> str:
        sign = "±" if self.seeds > 1 else "± se"
        return f"{self.value:.2f} {sign} {self.spread:.2f}"

    @property
    def provenance(self) -> str:
        marks = [f"scale {self.scale:.3g}", f"K {self.num_samples}", f"{self.seeds} seed{'s' * (self.seeds > 1)}"]
        return ", ".join([*marks, *self._shortcuts])

    @property
    def effort(self) -> str:
        """The share of the schedule, and what else is less than the paper's, in brackets."""
        return f"({', '.join([f'{self.scale:.3g}', *self._shortcuts])})"

    @property
    def _shortcuts(self) -> list[str]:
        return ["small"] * (self.size == "small") + ["subset of test"] * self.subset


def measured(cell: Cell, found: Sequence[Record], scale: float | None = None) -> Measured | None:
    """The best evidence for a cell: full size before small, the largest scale (or the one given), the largest K."""
    mine = [record for record in found if record.cell == cell.name]
    if scale is not None:
        mine = [record for record in mine if math.isclose(record.scale, scale, rel_tol=0.01)]
    if not mine:
        return None
    best = max(map(_rank, mine))
    mine = [record for record in mine if _rank(record) == best]
    results = [record.average if cell.averaged and record.average else record for record in mine]
    values = [result.bits_per_dim if cell.in_bits else result.log_likelihood for result in results]
    first, error = mine[0], results[0].standard_error
    if cell.in_bits:
        error *= results[0].bits_per_dim / abs(results[0].log_likelihood)
    spread = statistics.stdev(values) if len(values) > 1 else error
    name = first.dataset.removesuffix(" (stand-in)")
    subset = name in data.names() and first.num_images < data.sizes(name)[-1]
    return Measured(statistics.mean(values), spread, len(values), first.scale, first.num_samples, first.size, subset)


def _rank(record: Record) -> tuple[bool, float, int]:
    return record.size == "paper", round(record.scale, 6), record.num_samples


def by_scale(cell: Cell, found: Sequence[Record]) -> list[Measured]:
    """`measured` at every scale that the cell has a record of, the longest schedule first."""
    scales = sorted({round(record.scale, 6) for record in found if record.cell == cell.name}, reverse=True)
    return [mine for scale in scales if (mine := measured(cell, found, scale)) is not None]
