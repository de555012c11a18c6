"""Input-dependent baselines C_a(x, z_<a), one network per layer (Mnih & Gregor 2014)."""

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from dvaepp.estimators.draws import Layer
from dvaepp.numerics import Evaluation


class Mlp(nn.Module):
    """A network with one hidden tanh layer and one output, which is 0 for all inputs at the start."""

    def __init__(self, num_inputs: int, hidden: int, generator: torch.Generator | None = None) -> None:
        super().__init__()
        first = torch.empty(hidden, num_inputs, dtype=torch.float32)
        self.weight_in = nn.Parameter(first.normal_(0, 1 / math.sqrt(num_inputs), generator=generator))
        self.bias_in, self.weight_out = (nn.Parameter(torch.zeros(hidden, dtype=torch.float32)) for _ in range(2))
        self.bias_out = nn.Parameter(torch.zeros((), dtype=torch.float32))

    def forward(self, features: Tensor) -> Tensor:
        hidden = torch.tanh(nn.functional.linear(features, self.weight_in, self.bias_in))
        return hidden @ self.weight_out + self.bias_out

    def with_slope(self, features: Tensor, num_last: int) -> Evaluation:
        """The output and its derivative in the last features, both as formulas that autograd can differentiate."""
        hidden = torch.tanh(nn.functional.linear(features, self.weight_in, self.bias_in))
        slope = ((1 - hidden * hidden) * self.weight_out) @ self.weight_in[:, -num_last:]
        return Evaluation(hidden @ self.weight_out + self.bias_out, slope)


class Baselines(nn.Module):
    """One `Mlp` for each layer a. It reads x and z_<a, which are known before z_a is drawn."""

    def __init__(
        self, layer_sizes: Sequence[int], context_size: int, hidden: int, generator: torch.Generator | None = None
    ) -> None:
        super().__init__()
        before = [sum(layer_sizes[:a]) for a in range(len(layer_sizes))]
        self.networks = nn.ModuleList(Mlp(context_size + n, hidden, generator) for n in before)

    def forward(self, context: Tensor, layers: Sequence[Layer]) -> Tensor:
        """(layers, batch)."""
        seen = [context, *(layer.z for layer in layers)]
        return torch.stack([net(torch.cat(seen[: a + 1], -1)) for a, net in enumerate(self.networks)])
