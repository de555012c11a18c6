"""Feed-forward networks of Sec. 7.1 and 7.2 (App. F): linear, or tanh layers with batch norm before the tanh."""

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn

from dvaepp.kernels.products import linear, side_by_side
from dvaepp.networks.norm import BatchNorm
from dvaepp.numerics import autocasts, widened

EPS = 1e-2  # added to the variance in batch norm, as in the public experiments
TRUNCATED_SD = 0.87962566103423978  # standard deviation of a unit normal distribution that is cut at +-2


def truncated_normal_(weight: Tensor, generator: torch.Generator | None = None) -> Tensor:
    """Fill a weight (outputs, inputs) with normal numbers, cut at two standard deviations, of variance 2 / inputs.

    Choose it for weights of your own networks that should start as those of `Dense` do; the variance holds after the
    cut.

    >>> truncated_normal_(torch.empty(3, 200)).abs().max() < 0.3
    tensor(True)
    """
    return cut_normal_(weight, math.sqrt(2 / weight.shape[1]), generator)


def cut_normal_(weight: Tensor, sd: float, generator: torch.Generator | None) -> Tensor:
    """Fill a weight with numbers from a normal distribution that is cut at two standard deviations.

    The numbers have the standard deviation `sd` after the cut.
    """
    uncut = sd / TRUNCATED_SD
    return nn.init.trunc_normal_(weight, std=uncut, a=-2 * uncut, b=2 * uncut, generator=generator)


class Affine(NamedTuple):
    """The map x -> weight x + bias."""

    weight: Tensor
    bias: Tensor


class Dense(nn.Module):
    """Hidden tanh layers and a linear last one; without hidden layers a linear map.

    Choose it for encoders, decoders and directed priors like those of Sec. 7.1 and 7.2. Batch norm comes before each
    tanh, with the running momentum of the public experiments, 0.8 as TensorFlow counts it and 0.2 as torch does.

    >>> Dense(784, 200, hidden=(200, 200))(torch.zeros(2, 784)).shape
    torch.Size([2, 200])
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
            nn.Linear(a, b, bias=last or not batch_norm, dtype=torch.float32)
            for a, b, last in zip(sizes, sizes[1:], [False] * len(hidden) + [True], strict=False)
        )
        self.norms = nn.ModuleList(BatchNorm(n, eps=EPS, momentum=0.2) for n in hidden if batch_norm)
        for name, parameter in self.layers.named_parameters():
            if name.endswith("weight"):
                truncated_normal_(parameter.data, generator)
            else:
                nn.init.zeros_(parameter)

    def forward(self, *inputs: Tensor, offset: Tensor | None = None) -> Tensor:
        """The output for inputs (..., width) side by side, plus `offset` (outputs,)."""
        h = self._map(0, inputs, offset)
        for index in range(1, len(self.layers)):
            h = self._map(index, [torch.tanh(self._normalized(index - 1, h))], offset)
        return h

    def _map(self, index: int, inputs: Sequence[Tensor], offset: Tensor | None) -> Tensor:
        """One affine map; the last adds `offset` to its bias, which is cheaper than adding it to every row."""
        layer = self.layers[index]
        assert isinstance(layer, nn.Linear)
        bias: Tensor | None = layer.bias
        if offset is not None and bias is not None and index == len(self.layers) - 1:
            bias = bias + offset
        return linear_side_by_side(inputs, layer.weight, bias)

    def _normalized(self, index: int, x: Tensor) -> Tensor:
        if not self.norms:
            return x
        normalized: Tensor = self.norms[index](as_rows(x))
        return normalized if x.dim() == 2 else normalized.reshape(x.shape)

    def frozen(self) -> list[Affine]:
        """The network in evaluation mode: affine maps, which include batch norm, with a tanh between each two."""
        maps = []
        for index, layer in enumerate(self.layers):
            weight, bias = layer.get_parameter("weight").detach(), layer.bias
            bias = bias.detach() if isinstance(bias, Tensor) else weight.new_zeros(len(weight))
            if index < len(self.norms):
                norm = self.norms[index]
                mean, variance = norm.get_buffer("running_mean"), norm.get_buffer("running_var")
                scale = norm.get_parameter("weight").detach() * torch.rsqrt(variance + EPS)
                weight, bias = weight * scale[:, None], norm.get_parameter("bias").detach() + (bias - mean) * scale
            maps.append(Affine(widened(weight), widened(bias)))
        return maps


def as_read_by(weight: Tensor, x: Tensor) -> Tensor:
    """x in the type of the weight, because samples are float32 even where the network has half precision.

    Inside `torch.autocast` x stays as it is: torch converts both there.
    """
    return x if autocasts(weight.device) else x.to(weight.dtype)


def linear_side_by_side(inputs: Sequence[Tensor], weight: Tensor, bias: Tensor | None) -> Tensor:
    """`linear` of the concatenated inputs, computed without concatenating them.

    Each input has a product of its own, so that those that need no gradient get none: half of an encoder's backward
    pass would otherwise be spent on the pixels. Where the first input has fewer rows than the others, these hold
    several samples for each of its rows, one batch after another, and its product is computed once for all of them.
    """
    if autocasts(weight.device):
        return linear(torch.cat(list(inputs), -1), weight, bias)
    given = [as_read_by(weight, x) for x in inputs]
    if len(given) == 1:
        return linear(given[0], weight, bias)
    out = side_by_side([as_rows(x) for x in given], weight, bias)
    return out if given[-1].dim() == 2 else out.reshape(*given[-1].shape[:-1], -1)


def as_rows(x: Tensor) -> Tensor:
    """(..., width) as (rows, width). A tensor of this shape stays as it is, because a view costs time in autograd."""
    return x if x.dim() == 2 else x.reshape(-1, x.shape[-1])
