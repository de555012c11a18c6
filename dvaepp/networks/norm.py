"""Batch norm over the whole batch, whichever processes hold it (torch's SyncBatchNorm is for GPUs only)."""

import torch
from torch import Tensor, nn

from dvaepp import ranks


class BatchNorm(nn.modules.batchnorm._BatchNorm):
    """nn.BatchNorm1d or 2d for (rows, channels, ...); parameters and buffers have the same names."""

    def _check_input_dim(self, input: Tensor) -> None:
        if input.dim() < 2:
            raise ValueError(f"expected (rows, channels, ...), got {tuple(input.shape)}")

    def forward(self, input: Tensor) -> Tensor:
        if not self.training or ranks.size() == 1:
            return super().forward(input)
        return self._over_all_processes(input)

    def _over_all_processes(self, x: Tensor) -> Tensor:
        """Mean, then variance around it: two sums, where one of squares would lose digits."""
        over = [d for d in range(x.dim()) if d != 1]
        column = [1, -1] + [1] * (x.dim() - 2)
        with torch.no_grad():
            n = ranks.total(x.new_tensor(float(x.numel() // x.shape[1])))
        mean = ranks.total(x.sum(over)) / n
        centered = x - mean.view(column)
        variance = ranks.total((centered * centered).sum(over)) / n
        with torch.no_grad():
            momentum, running = self.momentum or 0.0, (self.running_mean, self.running_var)
            for buffer, found in zip(running, (mean, variance * (n / (n - 1))), strict=True):
                if buffer is not None:
                    buffer.lerp_(found, momentum)
            if self.num_batches_tracked is not None:
                self.num_batches_tracked += 1
        return centered * (self.weight * torch.rsqrt(variance + self.eps)).view(column) + self.bias.view(column)
