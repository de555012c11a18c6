"""A Boltzmann machine with any couplings, to which Sec. 5 extends: E(z) = -b·z - Σ_{i<j} z_i W_ij z_j."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from dvaepp.errors import UsageError
from dvaepp.numerics import full_precision
from dvaepp.priors.base import BoltzmannPrior, Couplings
from dvaepp.priors.family import Network, check_groups
from dvaepp.priors.graphs import coupling_mask

Linked = npt.NDArray[np.bool_]


class BoltzmannMachine(BoltzmannPrior):
    """Any symmetric coupling, or those of a graph alone: a mask, edges, a networkx graph, a dimod model or a name.

    `weight` is a square parameter of which only the part above the diagonal, inside the graph, takes part. Units are
    sampled in blocks from a colouring of the graph; a complete graph leaves one unit at a time, vectorised over chains.

    Choose it where an RBM's two sides do not suit the problem or the annealer; a sparse graph samples much faster.

    >>> BoltzmannMachine(64, graph="king").sample(5).shape
    torch.Size([5, 64])
    >>> BoltzmannMachine(3, graph=[(0, 1), (1, 2)]).num_units
    3
    """

    mask: Tensor

    def __init__(self, num_units: int, graph: Any = None) -> None:
        super().__init__()
        if num_units < 1:
            raise UsageError(f"num_units must be at least 1, got {num_units}")
        mask = coupling_mask(graph, num_units)
        self.num_units = num_units
        self.bias = nn.Parameter(torch.zeros(num_units, dtype=torch.float32))
        self.weight = nn.Parameter(torch.zeros(num_units, num_units, dtype=torch.float32))
        self.register_buffer("mask", torch.triu(mask, 1).to(self.bias.device))
        linked = mask.cpu().numpy()
        colours = _two_colours(linked) or _greedy_colours(linked)
        self._block_sizes = [len(colour) for colour in colours]
        units = [unit for colour in colours for unit in colour]
        self.register_buffer("_block_units", torch.tensor(units, dtype=torch.int64), persistent=False)

    @classmethod
    def for_groups(cls, group_sizes: Sequence[int], network: Network, *, graph: str = "complete") -> "BoltzmannMachine":
        """All units of the groups, numbered in their order, on a graph of the given name."""
        return cls(sum(check_groups(group_sizes)), graph)

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *args: Any) -> None:
        """Refuse the parameters of a machine on another graph, which the shapes alone would let in."""
        saved, errors = state_dict.get(f"{prefix}mask"), args[-1]
        if saved is not None and saved.shape == self.mask.shape and not torch.equal(saved.to(self.mask), self.mask):
            other, mine = (int(mask.sum()) for mask in (saved, self.mask))
            errors.append(f"{prefix}mask is of another graph: {other} couplings, not the same as the {mine} here")
            return
        super()._load_from_state_dict(state_dict, prefix, *args)

    def extra_repr(self) -> str:
        return f"{self.num_units}, couplings={int(self.mask.sum())}"

    @full_precision
    def energy(self, z: Tensor) -> Tensor:
        z = self.as_states(z)
        return -(z @ self.bias) - ((z @ self._upper()) * z).sum(-1)

    def _upper(self) -> Tensor:
        return self.weight.masked_fill(~self.mask, 0)

    def couplings(self) -> Couplings:
        upper = self._upper()
        return Couplings(self.bias, upper + upper.t())

    def adjacency(self) -> Tensor:
        return self.mask | self.mask.t()

    def blocks(self) -> list[Tensor]:
        """Two blocks where the graph is bipartite, otherwise a greedy colouring, largest degree first."""
        return list(self.get_buffer("_block_units").split(self._block_sizes))


def _two_colours(linked: Linked) -> list[list[int]] | None:
    """The sides of a bipartite graph, by walking it; None if it has an odd cycle."""
    neighbours = [row.nonzero()[0].tolist() for row in linked]
    side: dict[int, int] = {}
    for root in range(len(neighbours)):
        if root in side:
            continue
        side[root] = 0
        queue = [root]
        for unit in queue:
            for other in neighbours[unit]:
                if other not in side:
                    side[other] = 1 - side[unit]
                    queue.append(other)
                elif side[other] == side[unit]:
                    return None
    sides = [sorted(unit for unit, s in side.items() if s == which) for which in (0, 1)]
    return [members for members in sides if members]


def _greedy_colours(linked: Linked) -> list[list[int]]:
    """Each unit joins the first block that it is not coupled to, from the unit with most couplings on."""
    colours: list[list[int]] = []
    reached = np.zeros_like(linked)  # (units, blocks): which blocks a unit is coupled to
    for unit in np.argsort(-linked.sum(1), kind="stable").tolist():
        first = int(np.argmin(reached[unit]))  # an existing block or the next new one
        if first == len(colours):
            colours.append([])
        colours[first].append(unit)
        reached[linked[unit], first] = True
    return [sorted(colour) for colour in colours]
