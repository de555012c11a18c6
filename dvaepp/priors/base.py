"""Boltzmann machines over binary units: p(z) = e^(-E(z)) / Z, E(z) = -b·z - Σ_{i<j} z_i W_ij z_j (Sec. 5).

A member keeps its parameters in whatever shape suits it and states its energy, its `couplings()`, which of them exist
(`adjacency()`) and its `blocks()`: conditionals, cross-entropy and the log Z surrogate follow here, and samplers and
log Z estimates read nothing more.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from itertools import accumulate
from typing import NamedTuple

import torch
from torch import Tensor, nn

from dvaepp.errors import UsageError


class Couplings(NamedTuple):
    """All biases (units,) and the symmetric coupling matrix (units, units) with zero diagonal."""

    bias: Tensor
    matrix: Tensor


class Conditional(NamedTuple):
    """p(z_out = 1 | rest) = sigmoid(bias + z @ weight) for the units `out`, in block order.

    z is the other side where the units need no reordering (two blocks, an RBM), all units in block order otherwise.
    """

    out: slice
    weight: Tensor
    bias: Tensor


class BlockForm(NamedTuple):
    """What a sampler needs: the units block by block (`order`; None: as they are) and each block's conditional."""

    order: Tensor | None
    conditionals: list[Conditional]


class BoltzmannPrior(nn.Module, ABC):
    """What every Boltzmann machine can do; z has shape (..., units)."""

    num_units: int

    @abstractmethod
    def energy(self, z: Tensor) -> Tensor:
        """E(z), shape (...)."""

    @abstractmethod
    def couplings(self) -> Couplings:
        """Biases and symmetric couplings, differentiable in the parameters."""

    @abstractmethod
    def adjacency(self) -> Tensor:
        """Which couplings exist, zero or not: a symmetric boolean (units, units) matrix with false diagonal."""

    @abstractmethod
    def blocks(self) -> list[Tensor]:
        """Indices of units in blocks that are independent given all the others; they cover every unit once."""

    def block_form(self) -> BlockForm:
        """The conditionals that block Gibbs alternates between, detached."""
        blocks = self.blocks()
        order = torch.cat(blocks)
        bias, matrix = (p.detach() for p in self.couplings())
        rows = matrix[order]
        stops = accumulate(len(block) for block in blocks)
        conditionals = []
        for block, stop in zip(blocks, stops, strict=True):
            weight = rows[:, block].contiguous()
            conditionals.append(Conditional(slice(stop - len(block), stop), weight, bias[block]))
        return BlockForm(order, conditionals)

    def conditional_logits(self, z: Tensor, units: Tensor | slice) -> Tensor:
        """Logits of p(z_i = 1 | all other units) for i in `units`."""
        bias, matrix = self.couplings()
        return bias[units] + z @ matrix[:, units]

    def free_energy(self, z: Tensor, summed: Tensor | slice) -> Tensor:
        """-log Σ e^(-E(z)) over the units `summed`, whose values in z are ignored.

        They must be independent given the rest, as the units of one block are; coupled units give a wrong sum.
        """
        clamped = z.clone()
        clamped[..., summed] = 0
        logits = self.conditional_logits(clamped, summed)
        return self.energy(clamped) - torch.logaddexp(logits, torch.zeros_like(logits)).sum(-1)

    def log_z_surrogate(self, chains: Tensor) -> Tensor:
        """Mean of -E over samples of the prior: its gradient estimates that of log Z (App. E), its value means nothing.

        `chains` (chains, units) come from a sampler; no gradient flows into them.
        """
        return -self.energy(chains.detach()).mean()

    def cross_entropy(self, mu: Tensor, nu: Tensor, group_sizes: Sequence[int]) -> Tensor:
        """E_q[E(z)] given the ζ, for a posterior in groups q(z_a | x, ζ_<a), shape (batch,) (Sec. 5, last display).

        `mu` and `nu` (batch, units) hold q(z=1 | x, ζ_<a) and q(z=1 | x, ζ_≤a). Linear terms use μ. A coupling from
        a group to a later one contributes ν_i W_ij μ_j, because ζ_a is then known and z_b still averaged; inside one
        group it contributes μ_i W_ij μ_j, the mean field.
        """
        group = group_index(group_sizes, self.num_units, mu.device)
        bias, matrix = self.couplings()
        earlier = group[:, None] < group[None, :]
        same = torch.triu(group[:, None] == group[None, :], 1)
        pairs = (nu @ (matrix * earlier) + mu @ (matrix * same)) * mu
        return -(mu @ bias) - pairs.sum(-1)

    def as_states(self, z: Tensor) -> Tensor:
        """z in the parameters' type; anything but (..., units) is refused, where a product would broadcast it."""
        if z.shape[-1:] != (self.num_units,):
            raise ValueError(f"z must have shape (..., {self.num_units}), got {tuple(z.shape)}")
        return z.to(next(self.parameters()).dtype)

    def check(self) -> None:
        """Refuse parameters that are not finite."""
        for name, parameter in self.named_parameters():
            low, high = parameter.detach().aminmax()  # one pass, and NaN comes through it
            if not math.isfinite(low) or not math.isfinite(high):
                count = int((~torch.isfinite(parameter)).sum())
                raise ValueError(
                    f"{name} of the prior must be finite, got {count} values of NaN or infinity: "
                    "training diverged; go back to an earlier checkpoint"
                )

    def check_states(self, z: Tensor, name: str = "chains") -> None:
        """Refuse anything but (chains, units) of zeros and ones."""
        if z.dim() != 2 or z.shape[1] != self.num_units or z.shape[0] < 1:
            raise ValueError(f"{name} must have shape (chains, {self.num_units}), got {tuple(z.shape)}")
        if not torch.equal(z, z.bool().to(z.dtype)):
            bad = z[~((z == 0) | (z == 1))].reshape(-1)[0].item()
            raise ValueError(f"{name} must be 0 or 1, got {bad:g}")


def check_groups(group_sizes: Sequence[int], num_units: int) -> None:
    if sum(group_sizes) != num_units or min(group_sizes, default=0) < 1:
        raise UsageError(f"group_sizes must be positive and sum to {num_units} units, got {list(group_sizes)}")


def group_index(group_sizes: Sequence[int], num_units: int, device: torch.device) -> Tensor:
    """The group of each unit, for consecutive groups of the given sizes."""
    check_groups(group_sizes, num_units)
    sizes = torch.tensor(group_sizes, dtype=torch.int64, device=device)
    return torch.repeat_interleave(torch.arange(len(group_sizes), dtype=torch.int64, device=device), sizes)
