"""Which units of a Boltzmann machine are coupled: graphs in every usual form, and some graphs by name.

`coupling_mask` reads a boolean matrix, a list of edges, a `networkx` graph or a dimod model into the matrix that
`BoltzmannMachine` keeps. The named graphs suit the couplers that annealers have, and local structure in general:

    complete   every pair                       ring      each unit and the next, closed
    king       a board on which each unit is coupled to the eight around it, filled row by row
    chimera, pegasus, zephyr   D-Wave's machines, through `dwave-networkx` (extra `dwave`)
"""

import math
import warnings
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from itertools import combinations
from typing import Any

import numpy as np
import torch
from torch import Tensor

from dvaepp.errors import UsageError

Edge = tuple[int, int]


def coupling_mask(graph: Any, num_units: int) -> Tensor:
    """The symmetric boolean (units, units) matrix of a graph; what is no graph over these units is refused.

    `graph` is None or "complete" (all pairs), the name of a graph, a square matrix, edges as pairs of unit numbers, a
    networkx graph, or a dimod model. A graph whose nodes are not 0 ... units - 1 has its nodes numbered in its own
    order.
    """
    if graph is None or isinstance(graph, str) and graph == "complete":
        return _from_matrix(torch.ones(num_units, num_units, dtype=torch.bool, device="cpu"), num_units)
    if isinstance(graph, str):
        return _from_edges(named(graph, num_units), num_units)
    if isinstance(graph, np.ndarray):
        graph = torch.from_numpy(graph)
    if isinstance(graph, Tensor):
        whole = not graph.is_floating_point() and graph.dtype != torch.bool
        return _from_edges(_pairs(graph.tolist()), num_units) if whole else _from_matrix(graph.bool(), num_units)
    nodes, edges = _nodes_and_edges(graph)
    if nodes is None:
        return _from_edges(_pairs(edges), num_units)
    if len(nodes) != num_units:
        raise UsageError(f"the graph has {len(nodes)} nodes, and the machine has {num_units} units")
    place = {node: node if set(nodes) == set(range(num_units)) else k for k, node in enumerate(nodes)}
    return _from_edges([(place[i], place[j]) for i, j in edges], num_units)


def _nodes_and_edges(graph: Any) -> tuple[list[Any] | None, Iterable[Any]]:
    """The nodes and edges of a dimod model or a networkx graph; a plain list of edges has no nodes."""
    if hasattr(graph, "quadratic"):
        return list(graph.variables), list(graph.quadratic)
    if hasattr(graph, "edges"):
        return list(graph.nodes), [tuple(edge[:2]) for edge in graph.edges]
    if not isinstance(graph, Iterable):
        raise UsageError(f"a graph is a name, a matrix, edges or a networkx graph, got {type(graph).__name__}")
    return None, graph


def _pairs(edges: Iterable[Any]) -> list[Edge]:
    found = []
    for edge in edges:
        pair = tuple(edge) if isinstance(edge, Iterable) and not isinstance(edge, str) else (edge,)
        if len(pair) != 2 or not all(isinstance(unit, int | np.integer) for unit in pair):
            raise UsageError(f"an edge is a pair of unit numbers, got {str(edge)[:60]}")
        found.append((int(pair[0]), int(pair[1])))
    return found


def _from_edges(edges: Sequence[Edge], num_units: int) -> Tensor:
    mask = np.zeros((num_units, num_units), dtype=bool)
    for i, j in edges:
        if not (0 <= i < num_units and 0 <= j < num_units):
            raise UsageError(f"edge ({i}, {j}) leaves the machine: its units are 0 to {num_units - 1}")
        if i == j:
            raise UsageError(f"edge ({i}, {j}) is a self-loop: a unit's own term is its bias")
        if mask[i, j]:
            raise UsageError(f"edge ({i}, {j}) is given twice, or as ({j}, {i}) too: give each pair once")
        mask[i, j] = mask[j, i] = True
    return torch.from_numpy(mask)


def _from_matrix(mask: Tensor, num_units: int) -> Tensor:
    """A mask from a square matrix. A diagonal that is true throughout, as in a matrix of ones, is taken as false."""
    if mask.shape != (num_units, num_units):
        raise UsageError(f"mask must have shape ({num_units}, {num_units}), got {tuple(mask.shape)}")
    if not bool((mask == mask.t()).all()):
        i, j = (mask != mask.t()).nonzero()[0].tolist()
        raise UsageError(f"mask must be symmetric, but its entries ({i}, {j}) and ({j}, {i}) differ")
    diagonal = mask.diagonal()
    if bool(diagonal.any()) and not bool(diagonal.all()):
        i = int(diagonal.nonzero()[0])
        raise UsageError(f"entry ({i}, {i}) of the mask is a self-loop: a unit's own term is its bias")
    return mask & ~torch.eye(num_units, dtype=torch.bool, device=mask.device)


def named(name: str, num_units: int) -> list[Edge]:
    """The edges of a graph of the given name over so many units.

    >>> BoltzmannMachine(64, graph="king")
    """
    if name not in GRAPHS:
        raise UsageError(f"no graph called {name[:40]!r}; there are {', '.join(sorted(GRAPHS))}")
    return GRAPHS[name](num_units)


def complete(num_units: int) -> list[Edge]:
    """Every pair of units: the most expressive machine, and the slowest to sample, one unit at a time."""
    return list(combinations(range(num_units), 2))


def ring(num_units: int) -> list[Edge]:
    """Each unit and the next, and the last with the first."""
    edges = [(i, i + 1) for i in range(num_units - 1)]
    return [*edges, (0, num_units - 1)] if num_units > 2 else edges


def king(num_units: int) -> list[Edge]:
    """A board of ⌈√units⌉ columns, filled row by row; a unit is coupled to where a king may move from it."""
    columns = math.isqrt(num_units - 1) + 1 if num_units else 1
    edges = []
    for unit in range(num_units):
        column = unit % columns
        right, left = column < columns - 1, column > 0
        steps = [1] * right + [columns - 1] * left + [columns] + [columns + 1] * right
        edges += [(unit, unit + step) for step in steps if unit + step < num_units]
    return edges


def _dwave(family: str, num_units: int) -> list[Edge]:
    """The edges of the smallest graph of a family of D-Wave's that has as many units, or of a part of that graph."""
    return _part_of(_smallest(family, num_units), num_units)


def _smallest(family: str, num_units: int) -> Any:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # importing it warns that it has a successor
            import dwave_networkx  # type: ignore[import-untyped, unused-ignore]
    except ImportError:
        raise UsageError(f"graph {family!r} needs dwave-networkx: pip install 'dvaepp[dwave]'") from None
    size, make = 1 if family != "pegasus" else 2, getattr(dwave_networkx, f"{family}_graph")
    while (graph := make(size)).number_of_nodes() < num_units:
        size += 1
    return graph


def _part_of(graph: Any, num_units: int) -> list[Edge]:
    """The units met first on a walk outwards from a unit with most neighbours, numbered as in the whole graph."""
    neighbours = {node: sorted(graph.adj[node]) for node in sorted(graph.nodes)}
    queue = [max(neighbours, key=lambda node: len(neighbours[node]))]
    met = set(queue)
    for node in queue:
        new = [other for other in neighbours[node] if other not in met]
        queue += new
        met.update(new)
    place = {node: k for k, node in enumerate(sorted(queue[:num_units]))}
    return [(place[i], place[j]) for i in place for j in neighbours[i] if j in place and i < j]


GRAPHS: dict[str, Callable[[int], list[Edge]]] = {
    "complete": complete,
    "ring": ring,
    "king": king,
    "chimera": partial(_dwave, "chimera"),
    "pegasus": partial(_dwave, "pegasus"),
    "zephyr": partial(_dwave, "zephyr"),
}
"""Graphs that a recipe may name: from a number of units to edges."""
