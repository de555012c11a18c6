"""Block Gibbs on a path of machines, many chains side by side: the one engine under every sampler.

    log f_β(z) = c·z + β D(z),   D(z) = -E(z) - c·z

runs from independent units with logits c (β = 0) to the prior (β = 1); each chain has its own β. A block of units that
are independent given the rest is drawn at once: a matrix product, then one fused threshold.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from dvaepp.priors.base import BoltzmannPrior
from dvaepp.samplers.noise import Noise

MAX_SOURCES = 256  # the limit of the compiled sweeps: beyond, their tables leave the nearest cache


class Block(NamedTuple):
    """A conditional of the prior: `target` is drawn from the field that `source` exerts through `weight`."""

    out: slice  # of the units in block order
    source: Tensor
    target: Tensor
    weight: Tensor
    base: Tensor  # c
    delta: Tensor  # b - c
    acc: Tensor  # where the product goes


class BlockGibbs:
    """Chains of a prior, held block by block as float32, updated in place.

    Float32 carries the chains whatever the prior's type: energies then err by about 1e-5 nat, far below any sampling
    error, and a double product would take twice as long. The sides of an RBM are matrices of their own, which a small
    product reads a quarter faster than slices of one; a general machine's blocks are slices of one matrix.
    """

    def __init__(self, prior: BoltzmannPrior, num_chains: int, base_logits: Tensor | None = None) -> None:
        self.order, conditionals = prior.block_form()
        self.inverse = None if self.order is None else self.order.argsort()
        self.num_chains, self.num_units = num_chains, prior.num_units
        if base_logits is not None and self.order is not None:
            base_logits = base_logits[self.order]
        like = conditionals[0].bias.float()
        self.device = like.device
        self.bipartite = len(conditionals) == 2
        if self.order is None:
            targets = [like.new_empty(num_chains, len(c.bias)) for c in conditionals]
            sources = targets[::-1]
        else:
            whole = like.new_empty(num_chains, prior.num_units)
            targets = [whole[:, c.out] for c in conditionals]
            sources = [whole] * len(conditionals)
        self.blocks: list[Block] = []
        for (out, weight, bias), source, target in zip(conditionals, sources, targets, strict=True):
            bias = bias.float()
            base = bias if base_logits is None else base_logits[out].to(bias).contiguous()
            acc = torch.empty(target.shape, device=self.device)
            self.blocks.append(Block(out, source, target, weight.float(), base, bias - base, acc))

    def set_states(self, z: Tensor) -> None:
        ordered = z if self.order is None else z[:, self.order]
        for block in self.blocks:
            block.target.copy_(ordered[:, block.out])

    def states(self) -> Tensor:
        """The chains in the prior's own order, a copy."""
        ordered = torch.empty(self.num_chains, self.num_units, device=self.device)
        for block in self.blocks:
            ordered[:, block.out] = block.target
        return ordered if self.inverse is None else ordered[:, self.inverse]

    def draw_base(self, noise: Noise) -> None:
        """Start every chain from the independent units at β = 0."""
        for block in self.blocks:
            noise.threshold_(block.acc.zero_(), block.base, torch.zeros_like(block.base), None, block.target)

    def sweep(self, noise: Noise, scale: Tensor | None = None) -> None:
        """Update every unit once; `scale` (chains,) holds β of each chain, None means 1 for all."""
        for block in self.blocks:
            torch.mm(block.source, block.weight, out=block.acc)
            noise.threshold_(block.acc, block.base, block.delta, scale, block.target)

    def run(self, noise: Noise, num_sweeps: int) -> None:
        """Many sweeps at β = 1: in one call where the compiled kernel takes both sides of an RBM."""
        if noise.kernel is None or not self._fits_kernel():
            for _ in range(num_sweeps):
                self.sweep(noise)
            return
        to_right, to_left = self.blocks
        origin = noise.shard.first if noise.shard else 0
        biases = to_left.base + to_left.delta, to_right.base + to_right.delta
        matrices = to_left.target, to_right.target, to_right.weight.contiguous()
        noise.kernel.sweeps(*matrices, *biases, num_sweeps, noise.key, noise.step + 1, noise.threads, origin)
        noise.step += 2 * num_sweeps

    def _fits_kernel(self) -> bool:
        return self.order is None and all(block.weight.shape[0] <= MAX_SOURCES for block in self.blocks)

    def gap(self) -> Tensor:
        """D(z) = -E(z) - c·z of each chain, (chains,) in float64."""
        total = torch.zeros(self.num_chains, dtype=torch.float64, device=self.device)
        for index, block in enumerate(self.blocks):
            field = block.delta
            if not self.bipartite:  # every pair is met twice
                field = torch.mm(block.source, block.weight, out=block.acc).mul_(0.5).add_(field)
            elif index == 0:
                field = torch.mm(block.source, block.weight, out=block.acc).add_(field)
            total += (block.target * field).sum(1)
        return total

    def log_base_z(self) -> float:
        """log Z at β = 0: Σ log(1 + e^c)."""
        c = torch.cat([block.base for block in self.blocks]).double()
        return float(torch.logaddexp(c, torch.zeros_like(c)).sum())


def base_from_pilot(prior: BoltzmannPrior, noise: Noise, num_chains: int = 256, num_sweeps: int = 100) -> Tensor:
    """Logits c of independent units near the prior, the clipped mean of a short run: any is valid, a near one fast."""
    engine = BlockGibbs(prior, num_chains, torch.zeros(prior.num_units))
    engine.draw_base(noise)
    total = torch.zeros(prior.num_units, device=engine.device)
    for sweep in range(num_sweeps):
        engine.sweep(noise)
        if sweep >= num_sweeps // 2:
            total += engine.states().mean(0)
    return torch.logit((total / (num_sweeps - num_sweeps // 2)).clamp(0.02, 0.98))
