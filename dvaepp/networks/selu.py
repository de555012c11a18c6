"""Fully connected networks with SELU, for the global units of DVAE++ (App. G)."""

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn.functional import selu

from dvaepp.networks.dense import as_read_by, cut_normal_


class Selu(nn.Module):
    """Hidden SELU layers and a linear last one (App. G); `start` is a factor of the last layer's initial weights.

    Choose it in place of `Dense` where batch norm is not wanted: SELU keeps mean and variance of its inputs.

    >>> Selu(16, 4, hidden=(8,))(torch.zeros(2, 16)).shape
    torch.Size([2, 4])
    """

    def __init__(
        self,
        num_inputs: int,
        num_outputs: int,
        hidden: Sequence[int] = (),
        generator: torch.Generator | None = None,
        *,
        start: float = 1.0,
    ) -> None:
        super().__init__()
        sizes = [num_inputs, *hidden, num_outputs]
        pairs = zip(sizes, sizes[1:], strict=False)
        self.layers = nn.ModuleList(nn.Linear(a, b, dtype=torch.float32) for a, b in pairs)
        for layer, inputs in zip(self.layers, sizes, strict=False):
            cut_normal_(layer.get_parameter("weight"), math.sqrt(1 / inputs), generator)
            nn.init.zeros_(layer.get_parameter("bias"))
        self.layers[-1].get_parameter("weight").data.mul_(start)

    def forward(self, x: Tensor) -> Tensor:
        x = as_read_by(self.layers[0].get_parameter("weight"), x)
        for layer in list(self.layers)[:-1]:
            x = selu(layer(x))
        outputs: Tensor = self.layers[-1](x)
        return outputs
