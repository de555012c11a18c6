"""Convolutions and residual blocks against their definitions: loops in numpy, then plain torch layer by layer."""

import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from dvaepp.networks.convolution import Conv
from dvaepp.networks.residual import Residual, factor, parse, residual
from dvaepp.networks.selu import Selu


def _generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def _random(*shape: int, seed: int = 1) -> Tensor:
    return torch.randn(*shape, generator=_generator(seed), dtype=torch.float64)


def _shake(module: torch.nn.Module) -> None:
    """Biases start at zero; a test that leaves them there does not see them."""
    g = _generator(7)
    for name, parameter in module.named_parameters():
        if name.endswith("bias"):
            parameter.data.copy_(torch.randn(parameter.shape, generator=g))


def _loops(x: np.ndarray, weight: np.ndarray, bias: np.ndarray, resize: str) -> np.ndarray:
    """Tap by tap: y[q] = b + Σ w[tap] x[p], p = stride q + tap - pad; a transposed one has q and p exchanged."""
    rows, inputs, size, _ = x.shape
    kernel = weight.shape[-1]
    outputs, out = len(bias), {"": size, "d": (size + 1) // 2, "u": 2 * size}[resize]
    stride = 1 if resize == "" else 2
    y = np.zeros((rows, outputs, out, out)) + bias[:, None, None]
    small, large = (size, out) if resize == "u" else (out, size)
    for a in range(small):
        for b in range(small):
            for s in range(kernel):
                for t in range(kernel):
                    r, c = stride * a + s - kernel // 2, stride * b + t - kernel // 2
                    if not (0 <= r < large and 0 <= c < large):
                        continue
                    if resize == "u":
                        y[:, :, r, c] += x[:, :, a, b] @ weight[:, :, s, t]
                    else:
                        y[:, :, a, b] += x[:, :, r, c] @ weight[:, :, s, t].T
    return y


@pytest.mark.parametrize("resize", ["", "d", "u"])
@pytest.mark.parametrize("kernel", [1, 3])
@pytest.mark.parametrize("size", [1, 2, 4, 8])
@pytest.mark.parametrize("channels", [(2, 3), (40, 40)])
def test_conv_equals_its_definition_tap_by_tap(channels: tuple[int, int], size: int, kernel: int, resize: str) -> None:
    conv = Conv(*channels, kernel, resize, _generator()).double()
    _shake(conv)
    x = _random(3, channels[0], size, size)
    expected = _loops(x.numpy(), conv.weight.detach().numpy(), conv.bias.detach().numpy(), resize)
    torch.testing.assert_close(conv(x).detach(), torch.from_numpy(expected), rtol=0, atol=1e-10)


def _plain_conv(x: Tensor, weight: Tensor, bias: Tensor, resize: str) -> Tensor:
    pad = weight.shape[-1] // 2
    if resize == "u":
        return F.conv_transpose2d(x, weight, bias, stride=2, padding=pad, output_padding=1)
    return F.conv2d(x, weight, bias, stride=2 if resize == "d" else 1, padding=pad)


def _plain_block(parameters: dict[str, Tensor], x: Tensor, resize: str) -> Tensor:
    """ELU -> conv -> ELU -> conv -> squeeze-and-excitation, plus the skip."""
    p = parameters
    f = _plain_conv(F.elu(x), p["first.weight"], p["first.bias"], resize)
    f = F.conv2d(F.elu(f), p["second.weight"], p["second.bias"], padding=1)
    squeezed = F.elu(f.mean((2, 3)) @ p["excitation.squeeze.weight"].T + p["excitation.squeeze.bias"])
    scale = 1 / (1 + torch.exp(-(squeezed @ p["excitation.excite.weight"].T + p["excitation.excite.bias"])))
    skip = _plain_conv(x, p["skip.weight"], p["skip.bias"], resize) if "skip.weight" in p else x
    return skip + scale[:, :, None, None] * f


@pytest.mark.parametrize("size, resize", [(s, r) for s in (1, 2, 4, 8) for r in ("", "d", "u") if (s, r) != (1, "d")])
@pytest.mark.parametrize("channels, project", [((3, 8), False), ((8, 8), False), ((8, 8), True), ((40, 36), False)])
def test_block_and_its_gradients_equal_the_layers_written_out(
    channels: tuple[int, int], project: bool, size: int, resize: str
) -> None:
    block = Residual(*channels, resize, _generator(), project=project).double()
    _shake(block)
    x = _random(3, channels[0], size, size).requires_grad_()
    parameters = dict(block.named_parameters())
    expected, found = _plain_block(parameters, x, resize), block(x)
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-10)
    direction = _random(*expected.shape, seed=2)
    wanted = [x, *parameters.values()]
    for a, b in zip(
        torch.autograd.grad((found * direction).sum(), wanted),
        torch.autograd.grad((expected * direction).sum(), wanted),
        strict=True,
    ):
        torch.testing.assert_close(a, b, rtol=0, atol=1e-10)


def test_the_skip_is_the_identity_exactly_where_the_shape_stays() -> None:
    assert Residual(4, 4).skip is None
    for block in (Residual(4, 5), Residual(4, 4, "d"), Residual(4, 4, "u"), Residual(4, 4, project=True)):
        assert block.skip is not None and block.skip.kernel == 1
    with torch.no_grad():
        block = Residual(4, 4)
        block.second.weight.zero_()
        x = torch.randn(2, 4, 4, 4, generator=_generator())
        assert torch.equal(block(x), x)


def test_parameters_counted_by_hand() -> None:
    """32d from one channel: 3x3 convolutions of 1 -> 32 and 32 -> 32, squeeze 32 -> 8 -> 32, a 1x1 skip, all biased."""
    expected = (9 * 32 + 32) + (9 * 32 * 32 + 32) + (32 * 8 + 8) + (8 * 32 + 32) + (32 + 32)
    assert sum(p.numel() for p in Residual(1, 32, "d").parameters()) == expected == 10_184
    assert sum(p.numel() for p in Residual(32, 32).parameters()) == 2 * (9 * 32 * 32 + 32) + 264 + 288 == 19_048
    assert Residual(3, 2).excitation.squeeze.out_features == 1, "a ratio of 4 leaves at least one unit"


def test_chains_scale_the_map_and_take_the_last_width() -> None:
    blocks = ("4d", "4", "8d", "6u")
    assert residual(3, blocks)(torch.zeros(2, 3, 16, 16)).shape == (2, 6, 8, 8)
    assert factor(blocks) == 0.5 and factor(("4", "8")) == 1 and parse("128u") == (128, "u")
    for bad in ("u32", "32x", "d", "", "32du"):
        with pytest.raises(ValueError, match="a block is a number of filters with d or u"):
            parse(bad)


@pytest.mark.parametrize("resize", ["", "d", "u"])
def test_a_new_convolution_keeps_the_variance_of_noise(resize: str) -> None:
    """Unit noise on 32x32 maps, 64 channels: the output's variance is 1 inside; 400 000 numbers, borders cost 5 %."""
    conv = Conv(64, 64, 3, resize, _generator())
    x = torch.randn(8, 64, 32, 32, generator=_generator(3))
    with torch.no_grad():
        inner = conv(x)[:, :, 4:-4, 4:-4]
    assert inner.var().item() == pytest.approx(1, abs=0.05)


def test_selu_network_equals_its_layers() -> None:
    net = Selu(5, 3, (7, 6), _generator()).double()
    _shake(net)
    x = _random(4, 5)
    y = x
    weights = list(net.parameters())
    for index, (weight, bias) in enumerate(zip(weights[::2], weights[1::2], strict=True)):
        y = y @ weight.T + bias
        if index < 2:  # Klambauer et al.: λ = 1.0507, α = 1.67326
            y = 1.0507009873554805 * torch.where(y > 0, y, 1.6732632423543772 * (torch.exp(y) - 1))
    torch.testing.assert_close(net(x), y, rtol=0, atol=1e-12)
    assert [tuple(p.shape) for p in Selu(5, 3).parameters()] == [(3, 5), (3,)]
    sd = Selu(400, 400, (), _generator()).layers[0].weight.std().item()
    assert sd == pytest.approx(1 / math.sqrt(400), rel=0.02)
