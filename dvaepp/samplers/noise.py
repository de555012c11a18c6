"""Where a sampler's thresholds come from: the fused kernel on a CPU, torch's own generator elsewhere.

Both are reproducible from a `torch.Generator`. The kernel draws one 64-bit key from it and numbers its steps, so that
the noise of chain c, unit i, step s is a function of (key, s, c, i) and of nothing else.
"""

import torch
from torch import Tensor

from dvaepp.ranks import Shard
from dvaepp.samplers import kernel


class Noise:
    """Independent uniform noise for one run of a sampler; with `shard`, for those of all its chains."""

    def __init__(self, generator: torch.Generator | None, device: torch.device, shard: Shard | None = None) -> None:
        self.generator, self.shard = generator, shard
        self.kernel = kernel.load() if device.type == "cpu" else None
        if self.kernel is not None:
            self.key = int(torch.randint(0, 2**63 - 1, (), generator=generator, dtype=torch.int64, device="cpu"))
        self.step = 0
        self.threads = torch.get_num_threads()

    def threshold_(self, acc: Tensor, base: Tensor, delta: Tensor, scale: Tensor | None, out: Tensor) -> None:
        """out[r] = 1[u < sigmoid(base + scale[r] (acc[r] + delta))], a fresh u for each element."""
        self.step += 1
        if self.kernel is not None:
            origin = self.shard.first if self.shard else 0
            self.kernel.threshold(acc, base, delta, scale, out, self.key, self.step, self.threads, origin)
            return
        logits = acc + delta
        if scale is not None:
            logits *= scale[:, None]
        logits += base
        rows = self.shard.total if self.shard else len(acc)
        noise = torch.rand(rows, acc.shape[1], generator=self.generator, dtype=torch.float32, device=acc.device)
        if self.shard:
            noise = noise[self.shard.first : self.shard.last]
        torch.lt(noise, logits.sigmoid_(), out=out)

    def uniform(self, *shape: int) -> Tensor:
        """Uniform noise for the few decisions that are not thresholds."""
        device = self.generator.device if self.generator is not None else "cpu"
        return torch.rand(shape, generator=self.generator, dtype=torch.float32, device=device)
