"""Feed-forward networks of Sec. 7.1 and 7.2 (App. F): linear, or tanh layers with batch norm before the tanh."""

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn.functional import linear

TRUNCATED_SD = 0.87962566103423978  # standard deviation of a unit normal cut at +-2


def truncated_normal_(weight: Tensor, generator: torch.Generator | None = None) -> Tensor:
    """Fan-in initialisation: a normal cut at two standard deviations, of variance 2 / fan-in after cutting."""
    sd = math.sqrt(2 / weight.shape[1]) / TRUNCATED_SD
    return nn.init.trunc_normal_(weight, std=sd, a=-2 * sd, b=2 * sd, generator=generator)


class Dense(nn.Module):
    """Hidden tanh layers, then a linear one; no hidden layers is a linear map.

    Batch norm comes before each tanh, with the running momentum (0.8 in TensorFlow's sense, 0.2 in torch's) and
    eps = 1e-2 of the public experiments.
    """

    def __init__(
        self,
        num_inputs: int,
        num_outputs: int,
        hidden: Sequence[int] = (),
        *,
        batch_norm: bool = True,
        generator: torch.Generator | None = None,
    ) -> None:
        super().__init__()
        sizes = [num_inputs, *hidden, num_outputs]
        self.layers = nn.ModuleList(
            nn.Linear(a, b, bias=last or not batch_norm)
            for a, b, last in zip(sizes, sizes[1:], [False] * len(hidden) + [True], strict=False)
        )
        self.norms = nn.ModuleList(nn.BatchNorm1d(n, eps=1e-2, momentum=0.2) for n in hidden if batch_norm)
        for name, parameter in self.layers.named_parameters():
            if name.endswith("weight"):
                truncated_normal_(parameter.data, generator)
            else:
                nn.init.zeros_(parameter)

    def forward(self, x: Tensor) -> Tensor:
        return self.after_first(self.layers[0](x))

    def after_first(self, first: Tensor) -> Tensor:
        """The rest of the network, given the first layer's output; rows may carry extra leading axes in evaluation."""
        for index, layer in enumerate(list(self.layers)[1:]):
            first = layer(torch.tanh(self._normalized(index, first)))
        return first

    def _normalized(self, index: int, x: Tensor) -> Tensor:
        if not self.norms:
            return x
        flat: Tensor = self.norms[index](x.reshape(-1, x.shape[-1]))
        return flat.reshape(x.shape)

    def first_part(self, x: Tensor, start: int) -> Tensor:
        """What inputs `start` .. `start + width of x` contribute to the first layer, without its bias."""
        weight = self.layers[0].get_parameter("weight")
        return linear(x, weight[:, start : start + x.shape[-1]])
