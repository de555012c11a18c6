"""A Boltzmann machine with any couplings, to which Sec. 5 extends: E(z) = -b·z - Σ_{i<j} z_i W_ij z_j."""

import torch
from torch import Tensor, nn

from dvaepp.errors import UsageError
from dvaepp.priors.base import BoltzmannPrior, Couplings


class BoltzmannMachine(BoltzmannPrior):
    """Any symmetric coupling, with an optional sparsity mask.

    `weight` is a square parameter of which only the part above the diagonal, inside the mask, takes part; `mask` is a
    boolean (units, units) matrix, symmetric, of the couplings allowed (its diagonal is ignored). Units are sampled in
    blocks from a colouring of the graph of the mask; a dense machine falls back on one unit at a time, vectorised over
    chains.
    """

    mask: Tensor

    def __init__(self, num_units: int, mask: Tensor | None = None) -> None:
        super().__init__()
        if num_units < 1:
            raise UsageError(f"num_units must be at least 1, got {num_units}")
        mask = torch.ones(num_units, num_units, dtype=torch.bool) if mask is None else mask.bool()
        if mask.shape != (num_units, num_units):
            raise UsageError(f"mask must have shape ({num_units}, {num_units}), got {tuple(mask.shape)}")
        if not bool((mask == mask.t()).all()):
            i, j = (mask != mask.t()).nonzero()[0].tolist()
            raise UsageError(f"mask must be symmetric, but its entries ({i}, {j}) and ({j}, {i}) differ")
        self.num_units = num_units
        self.bias = nn.Parameter(torch.zeros(num_units, dtype=torch.float32))
        self.weight = nn.Parameter(torch.zeros(num_units, num_units, dtype=torch.float32))
        self.register_buffer("mask", torch.triu(mask, 1))

    def extra_repr(self) -> str:
        return f"{self.num_units}, couplings={int(self.mask.sum())}"

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
        linked = self.adjacency().cpu()
        colours = _two_colours(linked) or _greedy_colours(linked)
        return [torch.tensor(sorted(colour), dtype=torch.int64, device=self.bias.device) for colour in colours]


def _two_colours(linked: Tensor) -> list[list[int]] | None:
    """The sides of a bipartite graph, by walking it; None if it has an odd cycle."""
    neighbours = [row.nonzero()[:, 0].tolist() for row in linked]
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
    sides = [[unit for unit, s in side.items() if s == which] for which in (0, 1)]
    return [members for members in sides if members]


def _greedy_colours(linked: Tensor) -> list[list[int]]:
    """Each unit joins the first block it is not coupled to."""
    colours: list[list[int]] = []
    taken: list[Tensor] = []  # units each block is coupled to
    for unit in linked.sum(1).argsort(descending=True, stable=True).tolist():
        for colour, reached in zip(colours, taken, strict=True):
            if not reached[unit]:
                colour.append(unit)
                reached |= linked[unit]
                break
        else:
            colours.append([unit])
            taken.append(linked[unit].clone())
    return colours
