"""Boltzmann machines over binary units: p(z) = e^(-E(z)) / Z, E(z) = -b·z - Σ_{i<j} z_i W_ij z_j (Sec. 5).

A member keeps its parameters in whatever shape suits it and states its energy, its `couplings()`, which of them exist
(`adjacency()`) and its `blocks()`: conditionals, cross-entropy and the log Z surrogate follow here, and samplers and
log Z estimates read nothing more.

A machine of which some units are known is again a Boltzmann machine, over the other units: with z = (f, v), v known,

    E(f, v) = const - Σ_i (b_i + Σ_j W_ij v_j) f_i - Σ_{i<j} f_i W_ij f_j.

`given` makes it, so that conditional samples, marginals and log Z need no code of their own.
"""

from abc import abstractmethod
from collections.abc import Sequence
from itertools import accumulate
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor

from dvaepp.numerics import KeepsFloat32, full_precision
from dvaepp.priors.family import Kind, Prior, check_groups

SAMPLING_SWEEPS = 300  # tempered sweeps from independent units to samples of a trained prior


class Couplings(NamedTuple):
    """All biases (units,) and the symmetric coupling matrix (units, units) with zero diagonal.

    Choose it to read a machine's energy as a matrix, whatever its own parameters are.

    >>> RBM(2, 3).couplings().matrix.shape
    torch.Size([5, 5])
    """

    bias: Tensor
    matrix: Tensor


class Conditional(NamedTuple):
    """p(z_out = 1 | rest) = sigmoid(bias + z @ weight) for the units `out`, in block order.

    For an RBM, whose units need no reordering, z is the other side. For other machines it is all units in block order.
    """

    out: slice
    weight: Tensor
    bias: Tensor


class BlockForm(NamedTuple):
    """The conditionals of all blocks, and the `order` in which the units stand block by block; None if they do so."""

    order: Tensor | None
    conditionals: list[Conditional]


class BoltzmannPrior(KeepsFloat32, Prior):
    """What every Boltzmann machine can do; z has shape (..., units).

    Choose it as the base of an undirected prior of your own: a member states its couplings and its blocks.

    >>> isinstance(RBM(2, 2), BoltzmannPrior), isinstance(Factorial([4]), BoltzmannPrior)
    (True, False)
    """

    kind: ClassVar[Kind] = "undirected"

    @classmethod
    def num_couplings(cls, num_units: int) -> int:
        """How many numbers store the couplings of so many units, by which the memory of a run is estimated."""
        return num_units * num_units

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

    @full_precision
    def conditional_logits(self, z: Tensor, units: Tensor | slice) -> Tensor:
        """Logits of p(z_i = 1 | all other units) for i in `units`."""
        bias, matrix = self.couplings()
        return bias[units] + z @ matrix[:, units]

    @full_precision
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

    @full_precision
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

    def unnormalized_log_prob(self, z: Tensor, zeta: Tensor | None = None) -> Tensor:
        """-E(z), shape (...): log p(z) up to log Z, whatever ζ is."""
        return -self.energy(z)

    def log_prob(self, z: Tensor, zeta: Tensor | None = None, log_z: float | None = None) -> Tensor:
        """log p(z) = -E(z) - log Z, shape (...).

        `log_z` is a known value or an estimate; where it is None, `log_partition(self)` finds it anew at each call,
        exactly for small machines. It enters as a number: its gradient comes from `log_z_surrogate`.

        >>> log_z = log_partition(prior).value
        >>> prior.log_prob(prior.sample(100), log_z=log_z)
        """
        if log_z is None:
            from dvaepp.log_partition import log_partition

            log_z = log_partition(self).value
        return self.unnormalized_log_prob(z) - log_z

    def sample(
        self,
        n: int,
        generator: torch.Generator | None = None,
        *,
        clamp: Tensor | None = None,
        values: Tensor | None = None,
        num_sweeps: int = SAMPLING_SWEEPS,
    ) -> Tensor:
        """Draw z (n, units) by parallel tempering from independent units, each row from a ladder of its own.

        `clamp` and `values` hold units as in `samplers.gibbs`: the rest is drawn given them.

        >>> RBM(100, 100).sample(16, torch.Generator().manual_seed(0)).shape
        torch.Size([16, 200])
        """
        from dvaepp.samplers.tempering import tempered

        z = tempered(self, n, generator, num_sweeps=num_sweeps, clamp=clamp, values=values)
        return z.to(next(self.parameters()).dtype)

    def given(self, clamp: Tensor, values: Tensor) -> "BoltzmannPrior":
        """The machine of the units that `clamp` (units,) leaves free, where the others have their `values` (units,).

        Its parameters are a copy. The clamped part of the energy is left out, which shifts log Z by a constant.

        >>> rest = prior.given(clamp, values)  # p(z_free | z_clamped), free units in their order
        >>> rest.sample(10), log_partition(rest)
        """
        from dvaepp.priors.boltzmann_machine import BoltzmannMachine

        free, bias, matrix = self._restricted(clamp, values)
        machine = BoltzmannMachine(len(free), self.adjacency()[free][:, free]).to(bias)
        with torch.no_grad():
            machine.bias.copy_(bias)
            machine.weight.copy_(matrix)
        return machine

    def _restricted(self, clamp: Tensor, values: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """The free units, their biases in the field of the clamped ones, and the couplings between them."""
        clamp, values = self.check_clamp(clamp, values)
        if bool(clamp.all()):
            raise ValueError(f"all {self.num_units} units are clamped: nothing is left to be drawn")
        bias, matrix = (p.detach() for p in self.couplings())
        free = (~clamp).nonzero()[:, 0]
        field = torch.where(clamp, values, 0) @ matrix
        return free, (bias + field)[free], matrix[free][:, free]

    def conditional_marginals(
        self,
        clamp: Tensor,
        values: Tensor,
        generator: torch.Generator | None = None,
        *,
        num_samples: int = 1000,
    ) -> Tensor:
        """p(z_i = 1 | clamped units), (units,): their values where clamped, elsewhere a mean over samples.

        The mean is that of p(z_i = 1 | all other units) over tempered samples of the free units, which has less noise
        than that of z_i.

        >>> prior.conditional_marginals(clamp=known, values=z)
        """
        clamp, values = self.check_clamp(clamp, values)
        if bool(clamp.all()):
            return values
        rest = self.given(clamp, values)
        with torch.no_grad():
            logits = rest.conditional_logits(rest.sample(num_samples, generator), slice(None))
        found = values.clone()
        found[~clamp] = torch.sigmoid(logits).mean(0)
        return found

    def check_clamp(self, clamp: Tensor, values: Tensor, num_chains: int | None = None) -> tuple[Tensor, Tensor]:
        """The mask as booleans and the values in the parameters' type, or a refusal naming both shapes."""
        shapes = [(self.num_units,)] + ([] if num_chains is None else [(num_chains, self.num_units)])
        if tuple(clamp.shape) not in shapes or tuple(values.shape) not in shapes:
            raise ValueError(
                f"clamp and values must have shape {' or '.join(map(str, shapes))}, "
                f"got {tuple(clamp.shape)} and {tuple(values.shape)}"
            )
        if clamp.dtype != torch.bool:
            raise ValueError(f"clamp must be a boolean mask, True where a unit is known, got {clamp.dtype}")
        parameter = next(self.parameters())
        clamp, values = clamp.to(parameter.device), values.to(parameter)
        wrong = clamp & (values != 0) & (values != 1)
        if bool(wrong.any()):
            bad = values.expand(wrong.shape)[wrong][0].item()
            raise ValueError(f"values of clamped units must be 0 or 1, got {bad:g}")
        return clamp, values

    def check(self) -> None:
        """Refuse parameters that are not finite."""
        # `aminmax` reads the numbers once, and returns NaN where there is one.
        extremes = [end for p in self.parameters() for end in p.detach().aminmax()]
        if bool(torch.isfinite(torch.stack(extremes)).all()):
            return
        for name, parameter in self.named_parameters():
            if not bool(torch.isfinite(parameter).all()):
                count = int((~torch.isfinite(parameter)).sum())
                raise ValueError(
                    f"{name} of the prior must be finite, got {count} values of NaN or infinity: "
                    "training diverged; go back to an earlier checkpoint"
                )

    def check_states(self, z: Tensor, name: str = "chains") -> None:
        """Refuse anything but (chains, units) of zeros and ones."""
        self.check_states_shape(z, name)
        if not torch.equal(z, z.bool().to(z.dtype)):
            bad = z[~((z == 0) | (z == 1))].reshape(-1)[0].item()
            raise ValueError(f"{name} must be 0 or 1, got {bad:g}")

    def check_states_shape(self, z: Tensor, name: str = "chains") -> None:
        if z.dim() != 2 or z.shape[1] != self.num_units or z.shape[0] < 1:
            raise ValueError(f"{name} must have shape (chains, {self.num_units}), got {tuple(z.shape)}")


def group_index(group_sizes: Sequence[int], num_units: int, device: torch.device) -> Tensor:
    """The group of each unit, for consecutive groups of the given sizes."""
    sizes = check_groups(group_sizes, num_units)
    return torch.cat([torch.full((n,), group, dtype=torch.int64, device=device) for group, n in enumerate(sizes)])
