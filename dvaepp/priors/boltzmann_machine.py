"""A Boltzmann machine with any couplings, to which Sec. 5 extends: E(z) = -b·z - Σ_{i<j} z_i W_ij z_j."""

import torch
from torch import Tensor, nn

from dvaepp.errors import UsageError
from dvaepp.priors.base import BoltzmannPrior, Couplings


class BoltzmannMachine(BoltzmannPrior):
    """Any symmetric coupling, with an optional sparsity mask.

    `weight` is a square parameter of which only the part above the diagonal, inside the mask, takes part; `mask` is a
    boolean (units, units) matrix, symmetric, of the couplings allowed. Units are sampled in blocks from a colouring of
    the graph of the mask; a dense machine falls back on one unit at a time, vectorised over chains.
    """

    mask: Tensor

    def __init__(self, num_units: int, mask: Tensor | None = None) -> None:
        super().__init__()
        if num_units < 1:
            raise UsageError(f"num_units must be at least 1, got {num_units}")
        mask = torch.ones(num_units, num_units, dtype=torch.bool) if mask is None else mask.bool()
        if mask.shape != (num_units, num_units) or not bool((mask == mask.t()).all()):
            raise UsageError(f"mask must be a symmetric ({num_units}, {num_units}) matrix, got {tuple(mask.shape)}")
        self.num_units = num_units
        self.bias = nn.Parameter(torch.zeros(num_units))
        self.weight = nn.Parameter(torch.zeros(num_units, num_units))
        self.register_buffer("mask", torch.triu(mask, 1))

    def extra_repr(self) -> str:
        return f"{self.num_units}, couplings={int(self.mask.sum())}"

    def energy(self, z: Tensor) -> Tensor:
        return -(z @ self.bias) - ((z @ (self.weight * self.mask)) * z).sum(-1)

    def couplings(self) -> Couplings:
        upper = self.weight * self.mask
        return Couplings(self.bias, upper + upper.t())

    def blocks(self) -> list[Tensor]:
        """Greedy colouring, largest degree first: each unit joins the first block it is not coupled to."""
        linked = (self.mask | self.mask.t()).cpu()
        colours: list[list[int]] = []
        taken: list[Tensor] = []  # units each block is coupled to
        for unit in linked.sum(1).argsort(descending=True, stable=True).tolist():
            for colour, neighbours in zip(colours, taken, strict=True):
                if not neighbours[unit]:
                    colour.append(unit)
                    neighbours |= linked[unit]
                    break
            else:
                colours.append([unit])
                taken.append(linked[unit].clone())
        return [torch.tensor(sorted(colour), device=self.bias.device) for colour in colours]
