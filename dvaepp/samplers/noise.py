"""Where a sampler's thresholds come from: a counter-based generator, compiled on a CPU and in plain torch elsewhere.

It is reproducible from a `torch.Generator`: one 64-bit key is drawn from it, and steps are numbered, so that the noise
of chain c, unit i, step s is a function of (key, s, c, i) and of nothing else.
"""

import torch
from torch import Tensor

from dvaepp.distributed import Shard
from dvaepp.kernels import gibbs


class Noise:
    """Independent uniform noise for one run of a sampler; `shard` says which of all chains this process has."""

    def __init__(self, generator: torch.Generator | None, device: torch.device, shard: Shard | None = None) -> None:
        self.generator, self.device, self.shard = generator, device, shard
        self.compiled = device.type == "cpu" and gibbs.available()
        self._key = torch.randint(0, 2**63 - 1, (), generator=generator, device=device)
        self.key = int(self._key) if self.compiled else 0  # elsewhere reading it would wait for the device
        self.step = 0

    def threshold_(self, acc: Tensor, base: Tensor, delta: Tensor, scale: Tensor | None, out: Tensor) -> None:
        """out[r] = 1[u < sigmoid(base + scale[r] (acc[r] + delta))], a fresh u for each element."""
        self.step += 1
        origin = self.shard.first if self.shard else 0
        if self.compiled:
            gibbs.threshold_(acc, base, delta, scale, out, self.key, self.step, origin)
        else:
            gibbs.threshold(acc, base, delta, scale, out, self._key, self.step, origin)

    def uniform(self, *shape: int) -> Tensor:
        """Uniform noise for the few decisions that are not thresholds."""
        return torch.rand(shape, generator=self.generator, dtype=torch.float32, device=self.device)
