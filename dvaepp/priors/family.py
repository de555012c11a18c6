"""What every prior p(z) over groups of binary units states of itself, so that nobody asks for its name.

A prior is of one of two kinds, and its kind decides which objectives train it:

    undirected   p(z) = e^(-E(z)) / Z, a Boltzmann machine (`BoltzmannPrior`): the KL of Sec. 5, log Z from outside
    directed     p(z, ζ) = Π_a p(z_a|ζ_<a) r(ζ_a|z_a) (`DirectedPrior`): the KLs of Eq. 4 and Eq. 5, normalised

Both offer `log_prob`, `unnormalized_log_prob` (which importance weights use) and `sample`, and both are built for the
groups of a model by `for_groups`, whose keyword arguments are the options that a recipe may give under `model.prior`.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from itertools import accumulate
from typing import ClassVar, Literal

import torch
from torch import Tensor, nn

from dvaepp.errors import UsageError
from dvaepp.kernels import bernoulli
from dvaepp.numerics import uniform

Kind = Literal["undirected", "directed"]
Network = Callable[[int, int], nn.Module]
"""Makes a network from (number of inputs, number of outputs); it is called with one tensor per earlier group."""


class Prior(nn.Module, ABC):
    """p(z) over `num_units` binary units; z has shape (..., units), its groups side by side.

    Choose it to annotate code that takes any prior; `BoltzmannPrior` and `DirectedPrior` are the bases to build on.

    >>> [prior.num_units for prior in (RBM(2, 2), Factorial([3]))]
    [4, 3]
    """

    kind: ClassVar[Kind]
    min_units: ClassVar[int] = 1
    num_units: int

    @classmethod
    @abstractmethod
    def for_groups(cls, group_sizes: Sequence[int], network: Network) -> "Prior":
        """The prior for a model with groups of these sizes; `network` makes the networks it needs, if any.

        A member adds its own options as keyword arguments with defaults.
        """

    @abstractmethod
    def unnormalized_log_prob(self, z: Tensor, zeta: Tensor | None = None) -> Tensor:
        """log p(z|ζ), shape (...), up to log Z for an undirected prior; `zeta` None is the binary limit ζ = z."""

    @abstractmethod
    def log_prob(self, z: Tensor, zeta: Tensor | None = None, log_z: float | None = None) -> Tensor:
        """log p(z|ζ), shape (...); `log_z` is that of an undirected prior, which estimates it where it is None."""

    @abstractmethod
    def sample(self, n: int, generator: torch.Generator | None = None) -> Tensor:
        """Draw z (n, units) of zeros and ones in the binary limit, without gradient."""

    def as_states(self, z: Tensor) -> Tensor:
        """z in the parameters' type. Shapes other than (..., units) are refused: products may broadcast them."""
        if z.shape[-1:] != (self.num_units,):
            raise ValueError(f"z must have shape (..., {self.num_units}), got {tuple(z.shape)}")
        return z.to(next(self.parameters()).dtype)


class DirectedPrior(Prior):
    """Π_a p(z_a|ζ_<a): a member states the logits of a group given those before, and everything else follows.

    Choose it as the base of a directed prior of your own.

    >>> Factorial([2, 2]).log_prob(torch.ones(3, 4)).shape
    torch.Size([3])
    """

    kind: ClassVar[Kind] = "directed"

    def __init__(self, group_sizes: Sequence[int]) -> None:
        super().__init__()
        self.group_sizes = check_groups(group_sizes)
        self.num_units = sum(self.group_sizes)

    def extra_repr(self) -> str:
        return f"group_sizes={self.group_sizes}"

    @abstractmethod
    def next_logits(self, before: Sequence[Tensor]) -> Tensor:
        """Logits of p(z_a|ζ_<a) for the group after `before`, each (..., its units); they broadcast to its samples."""

    def logits(self, zeta: Sequence[Tensor]) -> list[Tensor]:
        """Logits of p(z_a|ζ_<a) for every group; ζ of the last group is not needed and may be left out."""
        return [self.next_logits(zeta[:a]) for a in range(len(self.group_sizes))]

    def unnormalized_log_prob(self, z: Tensor, zeta: Tensor | None = None) -> Tensor:
        z = self.as_states(z)
        known = (z if zeta is None else self.as_states(zeta)).split(self.group_sizes, -1)
        groups = zip(z.split(self.group_sizes, -1), self.logits(known), strict=True)
        return torch.stack([bernoulli.log_prob(part, logits.expand_as(part)) for part, logits in groups]).sum(0)

    def log_prob(self, z: Tensor, zeta: Tensor | None = None, log_z: float | None = None) -> Tensor:
        """log p(z|ζ), shape (...); a directed prior is normalised and ignores `log_z`."""
        return self.unnormalized_log_prob(z, zeta)

    @torch.no_grad()
    def sample(self, n: int, generator: torch.Generator | None = None) -> Tensor:
        """Draw the groups in turn, (n, units), each given those before it in the binary limit ζ = z."""
        z: list[Tensor] = []
        for size in self.group_sizes:
            logits = self.next_logits(z)
            rho = uniform(n, size, generator=generator, dtype=logits.dtype, device=logits.device)
            z.append((rho < torch.sigmoid(logits)).to(logits.dtype))
        return torch.cat(z, -1)


def check_groups(group_sizes: Sequence[int], num_units: int | None = None) -> list[int]:
    """Refuse groups that are empty or do not sum to the units."""
    if not isinstance(group_sizes, Iterable):
        raise UsageError(f"group_sizes is a list with the units of each group, such as [8], got {group_sizes!r}")
    sizes = list(group_sizes)
    units = sum(sizes) if num_units is None else num_units
    if sum(sizes) != units or min(sizes, default=0) < 1:
        raise UsageError(f"group_sizes must be positive and sum to {units} units, got {sizes}")
    return sizes


def earlier_units(group_sizes: Sequence[int]) -> list[int]:
    """How many units come before each group."""
    return list(accumulate(group_sizes, initial=0))[:-1]
