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


class Block(NamedTuple):
    """A conditional of the prior with what the threshold needs, c and b - c, and where its product goes."""

    out: slice
    given: slice
    weight: Tensor
    base: Tensor
    delta: Tensor
    acc: Tensor


class BlockGibbs:
    """Chains of a prior, held in block order as float32, updated in place.

    Float32 carries the chains whatever the prior's type: energies then err by about 1e-5 nat, far below any sampling
    error, and a double product would take twice as long.
    """

    def __init__(self, prior: BoltzmannPrior, num_chains: int, base_logits: Tensor | None = None) -> None:
        self.order, conditionals = prior.block_form()
        self.inverse = None if self.order is None else self.order.argsort()
        if base_logits is not None and self.order is not None:
            base_logits = base_logits[self.order]
        self.blocks: list[Block] = []
        for out, given, weight, bias in conditionals:
            weight, bias = weight.float(), bias.float()
            base = bias if base_logits is None else base_logits[out].to(bias).contiguous()
            acc = bias.new_empty(num_chains, len(bias))
            self.blocks.append(Block(out, given, weight, base, bias - base, acc))
        self.z = bias.new_empty(num_chains, prior.num_units)

    def set_states(self, z: Tensor) -> None:
        self.z.copy_(z if self.order is None else z[:, self.order])

    def states(self) -> Tensor:
        """The chains in the prior's own order."""
        return self.z.clone() if self.inverse is None else self.z[:, self.inverse]

    def draw_base(self, noise: Noise) -> None:
        """Start every chain from the independent units at β = 0."""
        for block in self.blocks:
            zeros = torch.zeros_like(block.base)
            noise.threshold_(block.acc.zero_(), block.base, zeros, None, self.z[:, block.out])

    def sweep(self, noise: Noise, scale: Tensor | None = None) -> None:
        """Update every unit once; `scale` (chains,) holds β of each chain, None means 1 for all."""
        for block in self.blocks:
            torch.mm(self.z[:, block.given], block.weight, out=block.acc)
            noise.threshold_(block.acc, block.base, block.delta, scale, self.z[:, block.out])

    def gap(self) -> Tensor:
        """D(z) = -E(z) - c·z of each chain, (chains,) in float64."""
        bipartite = len(self.blocks) == 2
        total = torch.zeros(len(self.z), dtype=torch.float64, device=self.z.device)
        for index, block in enumerate(self.blocks):
            field = block.delta
            if not bipartite:  # every pair is met twice
                field = torch.mm(self.z[:, block.given], block.weight, out=block.acc).mul_(0.5).add_(field)
            elif index == 0:
                field = torch.mm(self.z[:, block.given], block.weight, out=block.acc).add_(field)
            total += (self.z[:, block.out] * field).sum(1)
        return total

    def log_base_z(self) -> float:
        """log Z at β = 0: Σ log(1 + e^c)."""
        c = torch.cat([block.base for block in self.blocks]).double()
        return float(torch.logaddexp(c, torch.zeros_like(c)).sum())


def base_from_pilot(prior: BoltzmannPrior, noise: Noise, num_chains: int = 256, num_sweeps: int = 100) -> Tensor:
    """Logits c of independent units near the prior, the clipped mean of a short run: any is valid, a near one fast."""
    engine = BlockGibbs(prior, num_chains, torch.zeros(prior.num_units))
    engine.draw_base(noise)
    total = engine.z.new_zeros(prior.num_units)
    for sweep in range(num_sweeps):
        engine.sweep(noise)
        if sweep >= num_sweeps // 2:
            total += engine.states().mean(0)
    return torch.logit((total / (num_sweeps - num_sweeps // 2)).clamp(0.02, 0.98))
