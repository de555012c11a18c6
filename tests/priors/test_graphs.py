"""Graphs in every form give the same machine; what is no graph is refused, naming both ends."""

import builtins
from typing import Any

import networkx
import numpy as np
import pytest
import torch

from dvaepp.errors import UsageError
from dvaepp.priors import RBM, BoltzmannMachine, to_bqm
from dvaepp.priors.graphs import GRAPHS, coupling_mask, named

EDGES = [(0, 1), (2, 1), (3, 0)]


def _forms() -> dict[str, Any]:
    graph = networkx.Graph(EDGES)
    mask = torch.zeros(4, 4, dtype=torch.bool)
    for i, j in EDGES:
        mask[i, j] = mask[j, i] = True
    return {
        "edges": EDGES,
        "edges as an array": np.array(EDGES),
        "edges as a tensor": torch.tensor(EDGES),
        "mask": mask,
        "mask in numpy": mask.numpy(),
        "mask of ones and zeros": mask.float(),
        "networkx": graph,
        "dimod": to_bqm(BoltzmannMachine(4, EDGES)),
    }


@pytest.mark.parametrize("form", _forms())
def test_every_form_gives_the_same_couplings(form: str) -> None:
    pairs = torch.triu(coupling_mask(_forms()[form], 4)).nonzero().tolist()
    assert pairs == [[0, 1], [0, 3], [1, 2]]


def test_nodes_that_are_no_numbers_count_in_their_order() -> None:
    graph = networkx.Graph([("left", "middle"), ("middle", "right")])
    assert torch.triu(coupling_mask(graph, 3)).nonzero().tolist() == [[0, 1], [1, 2]]


@pytest.mark.parametrize(
    ("graph", "message"),
    [
        ([(0, 1), (2, 2)], r"edge \(2, 2\) is a self-loop"),
        ([(0, 1), (1, 0)], r"edge \(1, 0\) is given twice, or as \(0, 1\) too"),
        ([(0, 3)], r"edge \(0, 3\) leaves the machine: its units are 0 to 2"),
        ([(-1, 2)], r"edge \(-1, 2\) leaves the machine"),
        ([(0, 1, 2)], r"an edge is a pair of unit numbers, got \(0, 1, 2\)"),
        ([(0, 1.5)], r"an edge is a pair of unit numbers, got \(0, 1.5\)"),
        ([0, 1], "an edge is a pair of unit numbers, got 0"),
        (torch.diag(torch.tensor([False, True, False])), r"entry \(1, 1\) of the mask is a self-loop"),
        (networkx.Graph([(0, 0), (0, 1), (1, 2)]), r"edge \(0, 0\) is a self-loop"),
        (networkx.path_graph(5), "the graph has 5 nodes, and the machine has 3 units"),
        ("kings", "no graph called 'kings'; there are chimera, complete, king, pegasus, ring, zephyr"),
        (7, "a graph is a name, a matrix, edges or a networkx graph, got int"),
    ],
)
def test_what_is_no_graph_over_the_units_is_refused(graph: Any, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        BoltzmannMachine(3, graph)


def test_a_king_moves_to_the_eight_squares_around() -> None:
    """All pairs of squares at most one row and one column apart, on a board of 4 columns whose last row is not full."""
    places = [divmod(unit, 4) for unit in range(14)]
    expected = {
        (i, j)
        for i in range(14)
        for j in range(i + 1, 14)
        if max(abs(a - b) for a, b in zip(places[i], places[j], strict=True)) == 1
    }
    edges = named("king", 14)
    assert set(edges) == expected and len(edges) == len(expected)
    assert len(BoltzmannMachine(16, "king").blocks()) == 4


def test_a_ring_closes() -> None:
    assert networkx.is_isomorphic(networkx.Graph(named("ring", 7)), networkx.cycle_graph(7))
    assert named("ring", 2) == [(0, 1)] and named("ring", 1) == []


@pytest.mark.parametrize("name", sorted(GRAPHS))
@pytest.mark.parametrize("units", [1, 2, 9, 24])
def test_a_named_graph_has_as_many_units_as_asked_for(name: str, units: int) -> None:
    if name in ("chimera", "pegasus", "zephyr"):
        pytest.importorskip("dwave_networkx", reason="extra dwave")
    graph = networkx.Graph()
    graph.add_nodes_from(range(units))
    graph.add_edges_from(named(name, units))
    assert graph.number_of_nodes() == units and networkx.is_connected(graph)
    assert BoltzmannMachine(units, name).num_units == units


@pytest.mark.parametrize(("name", "units"), [("chimera", 8), ("chimera", 32), ("pegasus", 40), ("zephyr", 48)])
def test_a_whole_machine_is_dwaves_own_graph(name: str, units: int) -> None:
    dwave = pytest.importorskip("dwave_networkx", reason="extra dwave")
    size = {("chimera", 8): 1, ("chimera", 32): 2, ("pegasus", 40): 2, ("zephyr", 48): 1}[name, units]
    theirs = getattr(dwave, f"{name}_graph")(size)
    assert theirs.number_of_nodes() == units
    assert networkx.is_isomorphic(networkx.Graph(named(name, units)), networkx.Graph(theirs.edges))


def test_without_dwave_networkx_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def missing(name: str, *args: Any) -> Any:
        if name == "dwave_networkx":
            raise ImportError(name)
        return real(name, *args)

    monkeypatch.setattr(builtins, "__import__", missing)
    with pytest.raises(UsageError, match=r"graph 'zephyr' needs dwave-networkx: pip install 'dvaepp\[dwave\]'"):
        BoltzmannMachine(10, "zephyr")


def test_parameters_of_another_graph_are_refused() -> None:
    ring, king = BoltzmannMachine(6, "ring"), BoltzmannMachine(6, "king")
    BoltzmannMachine(6, "ring").load_state_dict(ring.state_dict())
    with pytest.raises(RuntimeError, match="mask is of another graph: 11 couplings, not the same as the 6 here"):
        ring.load_state_dict(king.state_dict())


def test_groups_of_a_model_give_the_number_of_units() -> None:
    def no_network(inputs: int, outputs: int) -> torch.nn.Module:
        raise AssertionError("a Boltzmann machine has no networks")

    assert BoltzmannMachine.for_groups([3, 4], no_network, graph="ring").num_units == 7
    rbm = RBM.for_groups([3, 4], no_network)
    assert (rbm.num_left, rbm.num_right) == (3, 4)
    with pytest.raises(UsageError, match="an RBM prior needs at least 2 units, got 1"):
        RBM.for_groups([1], no_network)
