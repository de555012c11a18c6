"""The restricted Boltzmann machine prior (Sec. 5): E(z) = -a₁·z₁ - a₂·z₂ - z₁ᵀ W z₂ over two sides z₁, z₂."""

from collections.abc import Sequence
from itertools import accumulate, pairwise
from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.nn.functional import softplus

from dvaepp.errors import UsageError
from dvaepp.numerics import full_precision
from dvaepp.priors.base import BlockForm, BoltzmannPrior, Conditional, Couplings
from dvaepp.priors.family import Network, check_groups


class RBM(BoltzmannPrior):
    """Two sides of binary units, every pair across them coupled; z is (..., num_left + num_right), left side first.

    Biases and weights start at zero (the paper is silent), so that the prior starts uniform.

    Choose it first among Boltzmann machines: it is the prior of the paper's best models, and the fastest to sample.

    >>> prior = RBM(100, 100)
    >>> prior.sample(16, torch.Generator().manual_seed(0)).shape
    torch.Size([16, 200])
    """

    min_units: ClassVar[int] = 2

    def __init__(self, num_left: int, num_right: int) -> None:
        super().__init__()
        if num_left < 1 or num_right < 1:
            raise UsageError(f"num_left and num_right must be at least 1, got {num_left} and {num_right}")
        self.num_left, self.num_right, self.num_units = num_left, num_right, num_left + num_right
        self.bias_left = nn.Parameter(torch.zeros(num_left, dtype=torch.float32))
        self.bias_right = nn.Parameter(torch.zeros(num_right, dtype=torch.float32))
        self.weight = nn.Parameter(torch.zeros(num_left, num_right, dtype=torch.float32))

    @classmethod
    def for_groups(cls, group_sizes: Sequence[int], network: Network) -> "RBM":
        """The two halves of all units as its sides, as in every public experiment."""
        units = sum(check_groups(group_sizes))
        if units < 2:
            raise UsageError(f"an RBM prior needs at least 2 units, got {units}")
        return cls(units // 2, units - units // 2)

    @classmethod
    def num_couplings(cls, num_units: int) -> int:
        return (num_units // 2) * (num_units - num_units // 2)

    def extra_repr(self) -> str:
        return f"{self.num_left}, {self.num_right}"

    @full_precision
    def energy(self, z: Tensor) -> Tensor:
        z = self.as_states(z)
        left, right = z[..., : self.num_left], z[..., self.num_left :]
        return -(left @ self.bias_left) - ((left @ self.weight + self.bias_right) * right).sum(-1)

    def couplings(self) -> Couplings:
        zeros_left = self.weight.new_zeros(self.num_left, self.num_left)
        zeros_right = self.weight.new_zeros(self.num_right, self.num_right)
        top = torch.cat([zeros_left, self.weight], 1)
        bottom = torch.cat([self.weight.t(), zeros_right], 1)
        return Couplings(torch.cat([self.bias_left, self.bias_right]), torch.cat([top, bottom]))

    def adjacency(self) -> Tensor:
        right = torch.arange(self.num_units, dtype=torch.int64, device=self.weight.device) >= self.num_left
        return right[:, None] != right[None, :]

    def blocks(self) -> list[Tensor]:
        units = torch.arange(self.num_units, dtype=torch.int64, device=self.weight.device)
        return [units[: self.num_left], units[self.num_left :]]

    def block_form(self) -> BlockForm:
        left, right = slice(0, self.num_left), slice(self.num_left, self.num_units)
        weight = self.weight.detach()
        to_right = Conditional(right, weight, self.bias_right.detach())
        return BlockForm(None, [to_right, Conditional(left, weight.t(), self.bias_left.detach())])

    @full_precision
    def free_energy(self, z: Tensor, summed: Tensor | slice) -> Tensor:
        """As for any machine, but without its square matrix if `summed` is the right side as a slice."""
        if not isinstance(summed, slice) or summed != slice(self.num_left, self.num_units):
            return super().free_energy(z, summed)
        left = self.as_states(z)[..., : self.num_left]
        return -(left @ self.bias_left) - softplus(left @ self.weight + self.bias_right).sum(-1)

    def given(self, clamp: Tensor, values: Tensor) -> BoltzmannPrior:
        """An RBM again while both sides keep a free unit, so that its fast sampler stays in use."""
        free, bias, matrix = self._restricted(clamp, values)
        left = int((free < self.num_left).sum())
        if left == 0 or left == len(free):
            return super().given(clamp, values)
        rest = RBM(left, len(free) - left).to(bias)
        with torch.no_grad():
            rest.bias_left.copy_(bias[:left])
            rest.bias_right.copy_(bias[left:])
            rest.weight.copy_(matrix[:left, left:])
        return rest

    @full_precision
    def cross_entropy(self, mu: Tensor, nu: Tensor, group_sizes: Sequence[int]) -> Tensor:
        """As for any machine, but without its square matrix, because all pairs have a left and a right unit."""
        check_groups(group_sizes, self.num_units)
        n = self.num_left
        linear = mu[..., :n] @ self.bias_left + mu[..., n:] @ self.bias_right
        ends = list(accumulate(group_sizes, initial=0))
        start, stop = next((s, e) for s, e in pairwise(ends) if e >= n)  # the group at the border of the sides
        inside = stop - n  # right units whose group also lies on the left side, from `start` on
        field = nu[..., :n] @ self.weight[:, inside:]
        if inside > 0:
            mixed = torch.cat([nu[..., :start], mu[..., start:n]], -1)
            field = torch.cat([mixed @ self.weight[:, :inside], field], -1)
        return -linear - (field * mu[..., n:]).sum(-1)
