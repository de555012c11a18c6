"""Convolutions that keep, halve or double a map, in whichever form is fastest."""

import math

import torch
from torch import Tensor, nn
from torch.nn.functional import conv2d, conv_transpose2d, elu

from dvaepp.networks import small_maps, wide, winograd
from dvaepp.networks.dense import TRUNCATED_SD
from dvaepp.networks.pixels import to_maps, to_pixels


class Conv(nn.Module):
    """A convolution of odd kernel size that keeps ("") halves ("d") or doubles ("u") the map."""

    def __init__(
        self, inputs: int, outputs: int, kernel: int = 3, resize: str = "", generator: torch.Generator | None = None
    ) -> None:
        super().__init__()
        self.kernel, self.resize = kernel, resize
        shape = (inputs, outputs) if resize == "u" else (outputs, inputs)
        self.weight = nn.Parameter(torch.empty(*shape, kernel, kernel, dtype=torch.float32))
        self.bias = nn.Parameter(torch.zeros(outputs, dtype=torch.float32))
        # a doubled map gathers a quarter of the taps for each of its pixels
        sd = math.sqrt((4 if resize == "u" else 1) / (inputs * kernel**2)) / TRUNCATED_SD
        nn.init.trunc_normal_(self.weight, std=sd, a=-2 * sd, b=2 * sd, generator=generator)

    def forward(self, x: Tensor) -> Tensor:
        return convolve(x, self.weight, self.bias, self.resize)

    def after_elu(self, x: Tensor) -> Tensor:
        outputs, inputs = self.weight.shape[:2]
        size, many = x.shape[-1], inputs * outputs >= winograd.MANY_CHANNELS
        if self.kernel == 3 and not self.resize and many and winograd.fits_the_cache(size):
            pixels, weights, biases = to_pixels(x), [self.weight], [self.bias]
            if wide.takes(pixels, weights):
                return to_maps(wide.after_elu(pixels, weights, biases), size)
            if winograd.in_the_cache(pixels, weights):
                return to_maps(winograd.after_elu(pixels[:, None], weights, biases).squeeze(1), size)
        return self(elu(x))


def convolve(x: Tensor, weight: Tensor, bias: Tensor | None, resize: str = "") -> Tensor:
    """A convolution in whichever form is fastest here; all are the same function."""
    kernel = weight.shape[-1]
    if kernel == 1:
        return small_maps.pointwise(x, weight, bias, resize)
    inputs, outputs = (weight.shape[:2]) if resize == "u" else weight.shape[1::-1]
    if small_maps.pays(x.shape[-1], resize, inputs, outputs):
        return small_maps.convolution(x, weight, bias, resize)
    if not resize and inputs * outputs >= winograd.MANY_CHANNELS and winograd.fits(x.shape[-1]):
        return winograd.on_maps(x, weight, bias)
    if inputs == 1 and kernel == 3 and resize != "u" and x.shape[-1] == x.shape[-2]:
        return small_maps.of_one_channel(x, weight, bias, resize)
    if resize == "u":
        y = conv_transpose2d(x, weight, bias, stride=2, padding=kernel // 2, output_padding=1)
        return y.contiguous(memory_format=torch.channels_last)  # a 1x1 map's own order says nothing
    return conv2d(x, weight, bias, stride=2 if resize == "d" else 1, padding=kernel // 2)
