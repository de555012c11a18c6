"""Block Gibbs on a path of machines, for many chains at once; all samplers of this folder run on it.

    log f_β(z) = c·z + β D(z),   D(z) = -E(z) - c·z

runs from independent units with logits c (β = 0) to the prior (β = 1); each chain has its own β. A block of units that
are independent given the rest is drawn at once: a matrix product, then one fused threshold.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from dvaepp.kernels.gibbs import MAX_SOURCES, sweeps_
from dvaepp.priors.base import BoltzmannPrior, Conditional
from dvaepp.samplers.noise import Noise

# A side is drawn in float32 where rounding can add no more than this to a logit. Errors mostly cancel to far less.
FIELD_ERROR = 2e-3


class Block(NamedTuple):
    """A conditional of the prior: `target` is drawn from the field that `source` exerts through `weight`.

    `origin` is set where the units of the source are drawn in another type: `source` is then a copy of it.
    """

    out: slice  # the place of these units in block order
    origin: Tensor | None
    source: Tensor
    target: Tensor
    weight: Tensor
    base: Tensor  # c
    delta: Tensor  # b - c
    exact_delta: Tensor  # the same in float64, for energies
    acc: Tensor  # memory for the product of source and weight


class Clamped(NamedTuple):
    """Which units of a block are known, and their values, each (chains, units of the block)."""

    mask: Tensor
    values: Tensor


class BlockGibbs:
    """Chains of a prior, held block by block whatever the prior's own type, updated in place.

    Where nothing but samples is wanted, the chains are float32. Estimates of log Z ask for `exact_energies`, and D is
    then exact to float64: in float32 the energies of 100 x 100 units with couplings of 10 are wrong by a tenth of a nat
    or more. The last block is drawn from float64 fields, from which D follows without another product. The other side
    of an RBM stays in float32, which takes half the time, unless its fields are so large that rounding could shift a
    logit.

    The sides of an RBM are two matrices, because small products read them a quarter faster than slices of one matrix.
    The blocks of other machines are slices of one matrix.
    """

    def __init__(
        self,
        prior: BoltzmannPrior,
        num_chains: int,
        base_logits: Tensor | None = None,
        exact_energies: bool = False,
    ) -> None:
        self.order, conditionals = prior.block_form()
        self.inverse = None if self.order is None else self.order.argsort()
        self.num_chains, self.num_units = num_chains, prior.num_units
        if base_logits is not None and self.order is not None:
            base_logits = base_logits[self.order]
        self.device = conditionals[0].bias.device
        self.bipartite = len(conditionals) == 2
        types = self._types(conditionals) if exact_energies else [torch.float32] * len(conditionals)
        if self.order is None:
            targets = [self._chains(len(c.bias), dtype) for c, dtype in zip(conditionals, types, strict=True)]
            origins = targets[::-1]
        else:
            whole = self._chains(prior.num_units, types[0])
            targets = [whole[:, c.out] for c in conditionals]
            origins = [whole] * len(conditionals)
        self.blocks: list[Block] = []
        for (out, weight, bias), origin, target, dtype in zip(conditionals, origins, targets, types, strict=True):
            # c is rounded to float32 for both types, so that all blocks and energies mean the same path
            base = (bias if base_logits is None else base_logits[out]).float().contiguous()
            delta = bias.double() - base.double()
            copied = None if origin.dtype == dtype else origin
            source = origin if copied is None else torch.empty_like(origin, dtype=dtype)
            parameters = weight.to(dtype), base.to(dtype), delta.to(dtype), delta
            self.blocks.append(Block(out, copied, source, target, *parameters, self._chains(len(bias), dtype)))
        self._clamped: list[Clamped] | None = None
        self._last_field_is_current = False

    def clamp(self, mask: Tensor, values: Tensor) -> None:
        """Hold units where `mask` is true at their `values`, each (chains, units) or (units,) for all chains.

        Clamped units are drawn with their block and put back, which leaves the conditional of every other unit as it
        is. `BoltzmannPrior.given` is faster where all chains share mask and values.
        """
        shape = (self.num_chains, self.num_units)
        ordered = [t.expand(shape) if self.order is None else t.expand(shape)[:, self.order] for t in (mask, values)]
        blocks = [(block.target.dtype, block.out) for block in self.blocks]
        self._clamped = [Clamped(ordered[0][:, out], ordered[1][:, out].to(dtype)) for dtype, out in blocks]
        self._units_were_set()

    def _units_were_set(self) -> None:
        """Put the clamped units of all blocks back; no field belongs to the units any more."""
        for index in range(len(self.blocks)):
            self._restore_block(index)
        self._last_field_is_current = False

    def _restore_block(self, index: int) -> None:
        """Put the clamped units of a block back."""
        if self._clamped is not None:
            mask, values = self._clamped[index]
            target = self.blocks[index].target
            target.copy_(torch.where(mask, values, target))

    def _types(self, conditionals: list[Conditional]) -> list[torch.dtype]:
        """The type of each block: float64, or float32 for the first side of an RBM if no field can round by much."""
        types = [torch.float64] * len(conditionals)
        if self.order is None:
            _, weight, bias = conditionals[0]
            largest = (weight.abs().sum(0) + bias.abs()).max().item()
            if len(weight) * 2**-24 * largest < FIELD_ERROR:  # the bound on the error of a sum of len(weight) terms
                types[0] = torch.float32
        return types

    def _chains(self, units: int, dtype: torch.dtype) -> Tensor:
        return torch.empty(self.num_chains, units, dtype=dtype, device=self.device)

    def set_states(self, z: Tensor) -> None:
        ordered = z if self.order is None else z[:, self.order]
        for block in self.blocks:
            block.target.copy_(ordered[:, block.out])
        self._units_were_set()

    def states(self) -> Tensor:
        """The chains in the prior's own order, a float32 copy."""
        ordered = torch.empty(self.num_chains, self.num_units, dtype=torch.float32, device=self.device)
        for block in self.blocks:
            ordered[:, block.out] = block.target
        return ordered if self.inverse is None else ordered[:, self.inverse]

    def draw_base(self, noise: Noise) -> None:
        """Start every chain from the independent units at β = 0."""
        for block in self.blocks:
            noise.threshold_(block.acc.zero_(), block.base, torch.zeros_like(block.base), None, block.target)
        self._units_were_set()

    def sweep(self, noise: Noise, scale: Tensor | None = None) -> None:
        """Update every unit once; `scale` (chains,) holds β of each chain, None means 1 for all."""
        for index, block in enumerate(self.blocks):
            field = _field(block)
            beta = None if scale is None else scale.to(field.dtype)
            noise.threshold_(field, block.base, block.delta, beta, block.target)
            self._restore_block(index)
        self._last_field_is_current = True

    def run(self, noise: Noise, num_sweeps: int) -> None:
        """Many sweeps at β = 1: in one call where the compiled kernel takes both sides of an RBM."""
        if not self._fits_kernel(noise):
            for _ in range(num_sweeps):
                self.sweep(noise)
            return
        to_right, to_left = self.blocks
        origin = noise.shard.first if noise.shard else 0
        biases = to_left.base + to_left.delta, to_right.base + to_right.delta
        matrices = to_left.target, to_right.target, to_right.weight.contiguous()
        sweeps_(*matrices, *biases, num_sweeps, noise.key, noise.step + 1, origin)
        noise.step += 2 * num_sweeps
        self._last_field_is_current = False

    def _fits_kernel(self, noise: Noise) -> bool:
        free_rbm = self._clamped is None and self.order is None
        return noise.compiled and free_rbm and max(self.blocks[0].weight.shape) <= MAX_SOURCES

    def gap(self) -> Tensor:
        """D(z) = -E(z) - c·z of each chain, (chains,) in float64, exact if the engine was asked for that."""
        total = torch.zeros(self.num_chains, dtype=torch.float64, device=self.device)
        for block in self.blocks:
            total += torch.mv(block.target.double(), block.exact_delta)
        if self.bipartite:  # the field of the last block contains every pair once
            block = self.blocks[-1]
            if not self._last_field_is_current:  # a sweep leaves this field in `acc`
                _field(block)
                self._last_field_is_current = True
            return total.add_((block.target * block.acc).sum(1))
        for block in self.blocks:  # the fields of all blocks together contain every pair twice
            total += (block.target * _field(block)).sum(1) / 2
        return total

    def log_base_z(self) -> float:
        """log Z at β = 0: Σ log(1 + e^c)."""
        c = torch.cat([block.base for block in self.blocks]).double()
        return float(torch.logaddexp(c, torch.zeros_like(c)).sum())


def _field(block: Block) -> Tensor:
    """What the units of the source contribute to the logits of the target, in `acc`."""
    if block.origin is not None:
        block.source.copy_(block.origin)
    return torch.mm(block.source, block.weight, out=block.acc)


def base_from_pilot(prior: BoltzmannPrior, noise: Noise, num_chains: int = 256, num_sweeps: int = 100) -> Tensor:
    """Logits c for the start of the path: those of the clipped mean of each unit in a short run.

    Any c is valid. The nearer the independent units are to the prior, the fewer temperatures the path needs.
    """
    device = prior.couplings().bias.device
    total = torch.zeros(prior.num_units, dtype=torch.float32, device=device)
    engine = BlockGibbs(prior, num_chains, torch.zeros_like(total))
    engine.draw_base(noise)
    for sweep in range(num_sweeps):
        engine.sweep(noise)
        if sweep >= num_sweeps // 2:
            total += engine.states().mean(0)
    return torch.logit((total / (num_sweeps - num_sweeps // 2)).clamp(0.02, 0.98))
