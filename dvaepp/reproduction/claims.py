"""The paper's qualitative claims about its tables, each held against the records.

A claim is a list of comparisons, each of a cell that should be better with one that should be worse. The two sides are
compared at the largest scale and size that both have. A difference within two standard errors leaves a comparison open.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from dvaepp.reproduction import paper
from dvaepp.reproduction.measured import measured
from dvaepp.reproduction.paper import Cell
from dvaepp.reproduction.records import Record

Pair = tuple[Cell, Cell]


class Claim(NamedTuple):
    """A statement of the paper, the verdict of our records in a word, and the evidence for and against it."""

    text: str
    verdict: str
    supports: list[str]
    contradicts: list[str]
    undecided: list[str]

    @property
    def evidence(self) -> str:
        """The comparisons for and against the claim, as sentences."""
        named = (("For it", self.supports), ("Against it", self.contradicts), ("Open", self.undecided))
        return " ".join(f"{name}: {'; '.join(lines)}." for name, lines in named if lines)


def claims(table: str, found: Sequence[Record]) -> list[Claim]:
    """Every claim that the paper makes about a table; none for one that it makes no claim about."""
    stated = STATED.get(table)
    return [] if stated is None else [_judged(text, pairs, found) for text, pairs in stated(paper.cells(table))]


def _judged(text: str, pairs: Sequence[Pair], found: Sequence[Record]) -> Claim:
    supports: list[str] = []
    contradicts: list[str] = []
    undecided: list[str] = []
    for better, worse in pairs:
        compared = _compared(better, worse, found)
        if compared is None:
            continue
        gain, error, conditions = compared
        line = f"{_contrast(better, worse)} {gain:+.2f} ± {error:.2f} ({conditions})"
        (supports if gain > 2 * error else contradicts if gain < -2 * error else undecided).append(line)
    return Claim(text, _verdict(supports, contradicts, undecided), supports, contradicts, undecided)


def _verdict(supports: Sequence[str], contradicts: Sequence[str], undecided: Sequence[str]) -> str:
    compared = len(supports) + len(contradicts) + len(undecided)
    if compared == 0:
        return "no records yet"
    if contradicts:
        return f"contradicted in {len(contradicts)} of {compared} comparisons"
    if supports:
        return f"holds in {len(supports)} of {compared} comparisons"
    return "open: every difference is within two standard errors"


def _contrast(better: Cell, worse: Cell) -> str:
    if better.row == worse.row:
        return f"{better.row}: {better.column} - {worse.column}"
    return f"{better.column}: {better.row} - {worse.row}"


def _compared(better: Cell, worse: Cell, found: Sequence[Record]) -> tuple[float, float, str] | None:
    """How much better the first cell is, the standard error of this difference, and how both were trained.

    None is returned if no scale has records of both cells.

    Log-likelihoods are better when larger, bits per dimension when smaller. Records of two sizes of network are never
    compared with each other.
    """
    for size in ("paper", "small"):
        of_size = [record for record in found if record.size == size]
        scales = [{round(r.scale, 4) for r in of_size if r.cell == cell.name} for cell in (better, worse)]
        if common := scales[0] & scales[1]:
            first, second = (measured(cell, of_size, max(common)) for cell in (better, worse))
            assert first is not None and second is not None
            sign = -1 if better.in_bits else 1
            conditions = f"scale {max(common):.3g}{', small nets' if size == 'small' else ''}"
            return sign * (first.value - second.value), math.hypot(first.spread, second.spread), conditions
    return None


Stated = Iterator[tuple[str, list[Pair]]]


def _pairs(
    cells: Sequence[Cell], is_better: Callable[[Cell], bool], is_worse: Callable[[Cell], bool], same: Sequence[str]
) -> list[Pair]:
    """Every pair of a better and a worse cell that agree in the arguments named by `same`."""

    def key(cell: Cell) -> list[str]:
        return [text for text in cell.arguments if text.partition("=")[0] in same]

    worse = [cell for cell in cells if is_worse(cell)]
    return [(a, b) for a in cells if is_better(a) for b in worse if a != b and key(a) == key(b)]


def _of(*methods: str) -> Callable[[Cell], bool]:
    return lambda cell: cell.recipe.partition(".")[2] in methods


def _with(text: str, *methods: str) -> Callable[[Cell], bool]:
    return lambda cell: text in cell.arguments and (not methods or _of(*methods)(cell))


def _table1(cells: Sequence[Cell]) -> Stated:
    everywhere = ("dataset", "linear")
    earlier = _of("nvil", "muprop", "rebar", "concrete")
    for method in ("joint", "marginal"):
        text = f"Overlapping smoothing with the {method} bound beats earlier estimators in most cases (Sec. 7.1)"
        yield text, _pairs(cells, _of(method), earlier, everywhere)


def _table2(cells: Sequence[Cell]) -> Stated:
    net = ("dataset", "layers", "linear")
    yield (
        "An RBM prior beats a directed one of the same size (Sec. 7.2)",
        _pairs(cells, _of("rbm"), _of("joint", "marginal"), net),
    )
    for layers, word in ((1, "one layer"), (2, "two layers")):
        some = [cell for cell in cells if f"layers={layers}" in cell.arguments]
        text = f"Overlapping smoothing beats Rolfe's spike-and-exponential in most cases, {word} (Sec. 7.2)"
        yield text, _pairs(some, _of("rbm"), _of("rolfe"), net)
    for method, name in (("rbm", "RBM prior"), ("joint", "directed prior")):
        some = [cell for cell in cells if _of(method)(cell) and "linear=false" in cell.arguments]
        yield (
            f"Two nonlinear layers beat one, {name} (Table 2's numbers)",
            _pairs(some, _with("layers=2"), _with("layers=1"), ("dataset",)),
        )


def _table3(cells: Sequence[Cell]) -> Stated:
    data = ("dataset",)
    yield (
        "DVAE++ (RBM by overlapping smoothing, normal local units) beats the all-continuous model in general",
        _pairs(cells, _of("rbm"), _of("continuous"), data),
    )
    yield (
        "Overlapping smoothing beats Rolfe's in the mixed model in general (Sec. 7.3)",
        _pairs(cells, _of("rbm"), _of("rolfe"), data),
    )
    yield "Normal local units beat Bernoulli ones", _pairs(cells, _of("rbm"), _of("rbm_bernoulli"), data)
    yield (
        "An RBM over the global units beats independent ones in the all-discrete model",
        _pairs(cells, _of("rbm_bernoulli"), _of("bernoulli"), data),
    )


def _more_groups(cells: Sequence[Cell]) -> Stated:
    later = list(zip(cells[1:], cells[:-1], strict=True))
    yield "More groups are better (App. I)", later


def _table7(cells: Sequence[Cell]) -> Stated:
    def on(mnist: bool) -> list[Cell]:
        return [cell for cell in cells if ("mnist" in cell.dataset) == mnist]

    conditional, unconditional, data = _with("conditional=true"), _with("conditional=false"), ("dataset",)
    yield (
        "A conditional decoder is better on all data sets but MNIST",
        _pairs(on(False), conditional, unconditional, data),
    )
    yield "An unconditional decoder is better on MNIST", _pairs(on(True), unconditional, conditional, data)


def _table8(cells: Sequence[Cell]) -> Stated:
    data = ("dataset",)
    elsewhere = [cell for cell in cells if "mnist" not in cell.dataset]
    yield (
        "Leaving out the global units is worse, except on MNIST",
        _pairs(elsewhere, _of("decoder"), _of("no_global"), data),
    )
    yield "Leaving out KL balancing is worse", _pairs(cells, _of("decoder"), _of("no_balancing"), data)


STATED: dict[str, Callable[[Sequence[Cell]], Stated]] = {
    "table1": _table1,
    "table2": _table2,
    "table3": _table3,
    "table5": _more_groups,
    "table6": _more_groups,
    "table7": _table7,
    "table8": _table8,
}
