"""Matrix products in place of convolutions: torch's numbers and gradients."""

import pytest
import torch
from torch import Tensor
from torch.nn.functional import conv2d, conv_transpose2d

from dvaepp.kernels import small_maps


def _random(*shape: int, seed: int = 0) -> Tensor:
    g = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=g, dtype=torch.float64).requires_grad_()


def _same(found: Tensor, expected: Tensor, wanted: list[Tensor]) -> None:
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-10)
    direction = _random(*expected.shape, seed=9).detach()
    gradients = [torch.autograd.grad((y * direction).sum(), wanted) for y in (found, expected)]
    for a, b in zip(*gradients, strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=1e-10)


@pytest.mark.parametrize("size", [1, 2, 3, 4, 8])
@pytest.mark.parametrize("resize", ["", "d", "u"])
@pytest.mark.parametrize("with_bias", [True, False])
@pytest.mark.parametrize("channels_last", [True, False])
def test_the_product_equals_the_convolution(size: int, resize: str, with_bias: bool, channels_last: bool) -> None:
    x = _random(5, 3, size, size)
    seen = x.contiguous(memory_format=torch.channels_last) if channels_last else x
    weight = _random(*((3, 4) if resize == "u" else (4, 3)), 3, 3, seed=1)
    bias = _random(4, seed=2) if with_bias else None
    if resize == "u":
        expected = conv_transpose2d(x, weight, bias, stride=2, padding=1, output_padding=1)
    else:
        expected = conv2d(x, weight, bias, stride=2 if resize == "d" else 1, padding=1)
    found = small_maps.convolution(seen, weight, bias, resize)
    _same(found, expected, [x, weight, *([] if bias is None else [bias])])


@pytest.mark.parametrize("size", [1, 2, 5, 8])
@pytest.mark.parametrize("resize", ["", "d"])
@pytest.mark.parametrize("with_bias", [True, False])
def test_maps_of_one_channel(size: int, resize: str, with_bias: bool) -> None:
    x, weight, bias = _random(5, 1, size, size), _random(4, 1, 3, 3, seed=1), _random(4, seed=2) if with_bias else None
    expected = conv2d(x, weight, bias, stride=2 if resize == "d" else 1, padding=1)
    found = small_maps.of_one_channel(x, weight, bias, resize)
    _same(found, expected, [x, weight, *([] if bias is None else [bias])])
    assert found.is_contiguous(memory_format=torch.channels_last)


@pytest.mark.parametrize("size", [1, 2, 4])
@pytest.mark.parametrize("resize", ["", "d", "u"])
@pytest.mark.parametrize("with_bias", [True, False])
def test_a_pointwise_map_equals_the_1x1_convolution(size: int, resize: str, with_bias: bool) -> None:
    x = _random(5, 3, size, size)
    weight = _random(*((3, 4) if resize == "u" else (4, 3)), 1, 1, seed=1)
    bias = _random(4, seed=2) if with_bias else None
    if resize == "u":
        expected = conv_transpose2d(x, weight, bias, stride=2, output_padding=1)
    else:
        expected = conv2d(x, weight, bias, stride=2 if resize == "d" else 1)
    found = small_maps.pointwise(x, weight, bias, resize)
    _same(found, expected, [x, weight, *([] if bias is None else [bias])])


def test_a_product_in_float32_keeps_its_type_after_one_in_float64() -> None:
    """The table of taps is kept between calls and must not fix a type."""
    weight, x = _random(4, 3, 3, 3, seed=1).detach(), _random(5, 3, 2, 2).detach()
    double = small_maps.convolution(x, weight, None)
    single = small_maps.convolution(x.float(), weight.float(), None)
    assert double.dtype == torch.float64 and single.dtype == torch.float32
    torch.testing.assert_close(single.double(), double, rtol=0, atol=1e-5)
    torch.testing.assert_close(small_maps.convolution(x, weight, None), double, rtol=0, atol=0)
