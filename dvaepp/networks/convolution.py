"""Convolutions that keep, halve or double the height and the width of a map."""

import math

import torch
from torch import Tensor, nn
from torch.nn.functional import conv2d, conv_transpose2d

from dvaepp.networks.dense import as_read_by, cut_normal_


class Conv(nn.Module):
    """A convolution of odd kernel size that keeps (""), halves ("d") or doubles ("u") height and width.

    Choose it inside networks that the compiled forms of `kernels/` are to take over; elsewhere `nn.Conv2d` does.

    >>> Conv(3, 8, resize="d")(torch.zeros(2, 3, 16, 16)).shape
    torch.Size([2, 8, 8, 8])
    """

    def __init__(
        self, inputs: int, outputs: int, kernel: int = 3, resize: str = "", generator: torch.Generator | None = None
    ) -> None:
        super().__init__()
        self.kernel, self.resize = kernel, resize
        shape = (inputs, outputs) if resize == "u" else (outputs, inputs)
        self.weight = nn.Parameter(torch.empty(*shape, kernel, kernel, dtype=torch.float32))
        self.bias = nn.Parameter(torch.zeros(outputs, dtype=torch.float32))
        # Where the map is doubled, a pixel sums over a quarter of the taps, so that the variance is four times larger.
        cut_normal_(self.weight, math.sqrt((4 if resize == "u" else 1) / (inputs * kernel**2)), generator)

    def forward(self, x: Tensor) -> Tensor:
        padding = self.kernel // 2
        x = as_read_by(self.weight, x)
        if self.resize == "u":
            return conv_transpose2d(x, self.weight, self.bias, stride=2, padding=padding, output_padding=1)
        return conv2d(x, self.weight, self.bias, stride=2 if self.resize == "d" else 1, padding=padding)
