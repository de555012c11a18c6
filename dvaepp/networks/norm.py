"""Batch norm over the whole batch, whichever processes hold it (torch's SyncBatchNorm is for GPUs only)."""

import torch
from torch import Tensor, nn

from dvaepp import distributed
from dvaepp.numerics import KeepsFloat32, widened


class BatchNorm(KeepsFloat32, nn.modules.batchnorm._BatchNorm):
    """`nn.BatchNorm1d` and `nn.BatchNorm2d` in one, for activations (rows, channels, ...), with the same state dict.

    Choose it where several processes share a batch, or where activations have half precision: means and variances are
    those of the whole batch, and they are computed and kept in float32 at least.

    >>> BatchNorm(8)(torch.randn(4, 8, 2, 2)).shape
    torch.Size([4, 8, 2, 2])
    """

    def __init__(self, channels: int, eps: float = 1e-5, momentum: float = 0.1) -> None:
        super().__init__(channels, eps, momentum, dtype=torch.float32)

    def _check_input_dim(self, input: Tensor) -> None:
        if input.dim() < 2:
            raise ValueError(f"expected (rows, channels, ...), got {tuple(input.shape)}")

    def forward(self, input: Tensor) -> Tensor:
        x = widened(input)
        y = super().forward(x) if not self.training or distributed.size() == 1 else self._over_all_processes(x)
        return y.to(input.dtype)

    def _over_all_processes(self, x: Tensor) -> Tensor:
        """Batch norm with the mean and variance of all processes, from those of each (Chan et al. 1979).

        Every process computes the squared deviations from its own mean; one exchange of these moments is enough. Sums
        of squares would be less arithmetic but lose digits. A common mean first, and then the deviations from it, would
        take two exchanges, and waiting for exchanges is what batch norm spends its time on.
        """
        over = [d for d in range(x.dim()) if d != 1]
        column = [1, -1] + [1] * (x.dim() - 2)
        own_mean = x.mean(over)
        own_m2 = (x - own_mean.view(column)).square().sum(over)
        count = x.new_tensor([x.numel() // x.shape[1]])
        counts, means, m2s = _of_each(count, own_mean, own_m2)
        n = counts.sum()
        mean = (counts * means).sum(0) / n
        variance = (m2s + counts * (means - mean).square()).sum(0) / n
        centered = x - mean.view(column)
        with torch.no_grad():
            momentum, running = self.momentum or 0.0, (self.running_mean, self.running_var)
            for buffer, found in zip(running, (mean, variance * (n / (n - 1))), strict=True):
                if buffer is not None:
                    buffer.lerp_(found, momentum)
            if self.num_batches_tracked is not None:
                self.num_batches_tracked += 1
        return centered * (self.weight * torch.rsqrt(variance + self.eps)).view(column) + self.bias.view(column)


def _of_each(*parts: Tensor) -> tuple[Tensor, ...]:
    """The vectors of all processes, (processes, length) each, in one exchange.

    Every process fills its own row of a matrix of zeros, and the sum of these matrices holds all rows.
    """
    own = torch.cat(parts)
    row = torch.arange(distributed.size(), dtype=torch.int64, device=own.device) == distributed.rank()
    return distributed.total(row[:, None] * own).split([len(part) for part in parts], 1)
