"""Convolutions of maps in the form that is fastest for their size on a CPU; all forms compute the same function."""

from typing import Protocol, runtime_checkable

import torch
from torch import Tensor, nn
from torch.nn.functional import conv2d, conv_transpose2d, elu

from dvaepp.kernels import policy, small_maps, winograd
from dvaepp.kernels.pixels import to_maps, to_pixels


@runtime_checkable
class Convolution(Protocol):
    """What is needed of a `networks.convolution.Conv`, which this folder must not import."""

    weight: Tensor
    bias: Tensor
    resize: str

    def __call__(self, x: Tensor) -> Tensor: ...


class ConvKernel:
    """The first base of a compiled `Conv`; the second is the plain class, whose forward pass `super()` calls."""

    weight: nn.Parameter
    bias: nn.Parameter
    resize: str

    def forward(self, x: Tensor) -> Tensor:
        if not policy.takes("small_maps", (x, self.weight)):
            return super().forward(x)  # type: ignore[misc]
        return convolve(x, self.weight, self.bias, self.resize)


def convolve(x: Tensor, weight: Tensor, bias: Tensor, resize: str) -> Tensor:
    """What `Conv` computes; the result is channels-last."""
    kernel, size = weight.shape[-1], x.shape[-1]
    if kernel == 1:
        return small_maps.pointwise(x, weight, bias, resize)
    inputs, outputs = weight.shape[:2] if resize == "u" else weight.shape[1::-1]
    if small_maps.pays(size, resize, inputs, outputs):
        return small_maps.convolution(x, weight, bias, resize)
    if inputs == 1 and resize != "u" and size == x.shape[-2]:
        return small_maps.of_one_channel(x, weight, bias, resize)
    x = x.contiguous(memory_format=torch.channels_last)
    if resize == "u":
        y = conv_transpose2d(x, weight, bias, stride=2, padding=kernel // 2, output_padding=1)
        return y.contiguous(memory_format=torch.channels_last)  # a map of one pixel does not tell torch its layout
    return conv2d(x, weight, bias, stride=2 if resize == "d" else 1, padding=kernel // 2)


def convolve_after_elu(x: Tensor, conv: Convolution) -> Tensor:
    """conv(ELU(x)) of maps (rows, inputs, size, size)."""
    size, weight, bias = x.shape[-1], conv.weight, conv.bias
    many = weight.shape[0] * weight.shape[1] >= policy.MANY_CHANNELS
    if weight.shape[-1] == 3 and not conv.resize and many:
        pixels = to_pixels(x)
        if policy.in_the_cache(pixels, [weight]):
            return to_maps(winograd.after_elu(pixels[:, None], [weight], [bias]).squeeze(1), size)
    return conv(elu(x))


def pixels_after_elu(x: Tensor, weight: Tensor) -> Tensor:
    """A 3x3 convolution of ELU(x), (pixels, rows, inputs), without a bias."""
    if policy.in_the_cache(x, [weight]):
        return winograd.after_elu(x[:, None], [weight]).squeeze(1)
    return to_pixels(conv2d(elu(to_maps(x, round(len(x) ** 0.5))), weight, padding=1))
