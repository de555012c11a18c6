"""Networks of the local groups: q(h_j|x, ζ, h_<j) and p(h_j|ζ, h_<j), one residual network per group (App. G).

Network j acts on concat(shared, h_1, ..., h_{j-1}). ELU works channel by channel and a convolution over a concatenation
is a sum of convolutions: the first block splits into a share of `shared`, one wide convolution for all groups, and one
of the h. Where all h are known, the networks run beside each other as one grouped network. Both ways compute the same
function as network after network on a concatenation (`plain`), which a test checks.

Inside, activations are pixel-major, (pixels, rows, channels) or (pixels, groups, rows, channels): convolutions are then
products with little around them (networks/winograd.py). Maps come and go as (rows, channels, height, width).
"""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import elu, linear, pad

from dvaepp.networks import winograd
from dvaepp.networks.residual import Conv, Excitation, Residual, convolve, residual

BESIDE = 4  # groups whose first convolutions over h are one: products four times as wide for 1.2 times their work
QUIET = 0.1  # initial scale of what a network's last block adds


class Share(NamedTuple):
    """What some input channels give to the first convolution and to the skip of first blocks, pixel-major."""

    first: Tensor
    skip: Tensor

    def plus(self, other: "Share") -> "Share":
        return Share(self.first + other.first, self.skip + other.skip)

    def repeated(self, times: int) -> "Share":
        """The rows again and again."""
        return Share(*(part.repeat(1, times, 1) for part in self))


class Kernel(NamedTuple):
    """A convolution's weights as they are used: transformed for `winograd` where that fits, and its bias."""

    weight: Tensor
    bias: Tensor


class Block(NamedTuple):
    """A residual block's convolutions; `first` is None in a first block, which is computed from shares."""

    first: Kernel | None
    second: Kernel
    skip: Kernel | None
    excitation: tuple[Tensor, ...]


class LocalNetworks(nn.Module):
    """`num_groups` residual networks of `blocks`, which keep the map's size; h has `channels` channels per group."""

    def __init__(
        self,
        shared: int,
        channels: int,
        num_groups: int,
        blocks: Sequence[str],
        generator: torch.Generator | None = None,
    ) -> None:
        super().__init__()
        self.shared, self.channels, self.num_groups = shared, channels, num_groups
        self.networks = nn.ModuleList(
            residual(shared + j * channels, blocks, generator, project=True) for j in range(num_groups)
        )
        for network in self.networks:
            _quieten(list(network.children())[-1])

    def plain(self, j: int, shared: Tensor, h: Sequence[Tensor]) -> Tensor:
        """Network j as the paper draws it."""
        outputs: Tensor = self.networks[j](torch.cat([shared, *h], 1))
        return outputs

    def share(self, x: Tensor, start: int = 0) -> Share:
        """Of channels `start` .. of `shared`, for all groups side by side; the first channels bring the biases."""
        blocks = self._blocks(0)
        stop = start + x.shape[1]
        firsts, skips = [block.first for block in blocks], [_skip(block) for block in blocks]
        x = to_pixels(x)
        first = _convolution(elu(x), torch.cat([conv.weight[:, start:stop] for conv in firsts]))
        skip = linear(x, torch.cat([conv.weight[:, start:stop, 0, 0] for conv in skips]))
        if start == 0:
            first = first + torch.cat([conv.bias for conv in firsts])
            skip = skip + torch.cat([conv.bias for conv in skips])
        return Share(first, skip)

    def split(self, share: Share) -> list[Share]:
        """The groups of a share, each with its channels together again."""
        firsts, skips = ([piece.contiguous() for piece in part.chunk(self.num_groups, -1)] for part in share)
        return [Share(first, skip) for first, skip in zip(firsts, skips, strict=True)]

    def prepared(self, size: int) -> list[list[Block]]:
        """The blocks of every network as `one` uses them, for maps of `size`: made for all groups at once.

        Making them one by one would take more calls than using them.
        """
        by_place = []
        axis = 1 if winograd.fits(size) else 0  # of the groups in stacked kernels
        for place in range(self._depth()):
            stacked = self._stacked(place, size)
            firsts, seconds = self._unstacked(stacked.first, axis), self._unstacked(stacked.second, axis)
            skips = self._unstacked(stacked.skip, 0)
            excitations = list(zip(*(t.unbind(0) for t in stacked.excitation), strict=True))
            by_place.append([Block(*block) for block in zip(firsts, seconds, skips, excitations, strict=True)])  # type: ignore[arg-type]
        return [list(blocks) for blocks in zip(*by_place, strict=True)]

    def one(self, j: int, share: Share, h: Sequence[Tensor], blocks: Sequence[Block], size: int) -> Tensor:
        """Network j from its share of all shared channels, h_1 ... h_{j-1} (maps), and its prepared blocks."""
        if h:
            network = self._blocks(0)[j]
            before = torch.cat([to_pixels(group) for group in h], -1)
            first = _convolution(elu(before), network.first.weight[:, self.shared :])
            share = share.plus(Share(first, linear(before, _skip(network).weight[:, self.shared :, 0, 0])))
        x = _after_first(blocks[0], *share)
        for block in blocks[1:]:
            x = _block(block, x)
        return to_maps(x, size)

    def beside(self, share: Share, h: Sequence[Tensor], size: int) -> list[Tensor]:
        """All networks at once, given all h: the outputs of every group, maps."""
        if self.num_groups > 1:
            before = torch.cat([to_pixels(group) for group in h[: self.num_groups - 1]], -1)
            share = share.plus(self._share_of_h(before))
        first, skip = (part.unflatten(-1, (self.num_groups, -1)).transpose(1, 2).contiguous() for part in share)
        x = _after_first(self._stacked(0, size), first, skip)
        for place in range(1, self._depth()):
            x = _block(self._stacked(place, size), x)
        return [to_maps(group, size) for group in x.unbind(1)]

    def _share_of_h(self, h: Tensor) -> Share:
        parts = []
        active = elu(h)
        for begin in range(0, self.num_groups, BESIDE):
            blocks = self._blocks(0)[begin : begin + BESIDE]
            width = (begin + len(blocks) - 1) * self.channels
            first = torch.cat([self._widened(block.first, width) for block in blocks])
            skip = torch.cat([self._widened(_skip(block), width) for block in blocks])
            parts.append(Share(_convolution(active[..., :width], first), linear(h[..., :width], skip[:, :, 0, 0])))
        return Share(*(torch.cat(pieces, -1) for pieces in zip(*parts, strict=True)))

    def _widened(self, conv: Conv, width: int) -> Tensor:
        """A first convolution's weights over h, with zeros for the groups it must not see."""
        weight = conv.weight[:, self.shared :]
        return pad(weight, (0, 0, 0, 0, 0, width - weight.shape[1]))

    def _blocks(self, place: int) -> list[Residual]:
        found = [list(network.children())[place] for network in self.networks]
        return [block for block in found if isinstance(block, Residual)]

    def _depth(self) -> int:
        return len(list(self.networks[0].children()))

    def _stacked(self, place: int, size: int) -> Block:
        """The blocks at one place of all networks as one grouped block."""
        blocks = self._blocks(place)
        skip = None
        if place > 0 and blocks[0].skip is not None:
            weight = torch.stack([_skip(block).weight[:, :, 0, 0] for block in blocks]).transpose(1, 2)
            skip = Kernel(weight, torch.stack([_skip(block).bias for block in blocks]))
        return Block(
            _stack([block.first for block in blocks], size) if place > 0 else None,
            _stack([block.second for block in blocks], size),
            skip,
            _stack_excitations([block.excitation for block in blocks]),
        )

    def _unstacked(self, kernel: Kernel | None, axis: int) -> list[Kernel | None]:
        if kernel is None:
            return [None] * self.num_groups
        return [Kernel(*pair) for pair in zip(kernel.weight.unbind(axis), kernel.bias.unbind(0), strict=True)]


def to_pixels(x: Tensor) -> Tensor:
    """(rows, channels, height, width) -> (pixels, rows, channels)."""
    return x.permute(2, 3, 0, 1).flatten(0, 1)


def to_maps(x: Tensor, size: int) -> Tensor:
    """(pixels, rows, channels) -> (rows, channels, size, size), without copying."""
    return x.unflatten(0, (size, size)).permute(2, 3, 0, 1)


def _convolution(x: Tensor, weight: Tensor) -> Tensor:
    """3x3, stride 1, of pixel-major x by (outputs, inputs, 3, 3)."""
    size = round(x.shape[0] ** 0.5)
    if winograd.fits(size):
        return winograd.convolution(x, winograd.kernels(weight))
    return to_pixels(convolve(to_maps(x, size), weight, None))


def _apply(x: Tensor, kernel: Kernel) -> Tensor:
    """A prepared 3x3 convolution of x (pixels, rows, channels) or (pixels, groups, rows, channels)."""
    if kernel.weight.dim() == x.dim():  # (36, [groups,] inputs, outputs)
        y = winograd.convolution(x, kernel.weight)
    elif x.dim() == 3:
        y = _convolution(x, kernel.weight)
    else:
        y = torch.stack([_convolution(*pair) for pair in zip(x.unbind(1), kernel.weight.unbind(0), strict=True)], 1)
    return y + kernel.bias.unsqueeze(-2)


def _block(block: Block, x: Tensor) -> Tensor:
    assert block.first is not None
    skip = x if block.skip is None else torch.matmul(x, block.skip.weight) + block.skip.bias.unsqueeze(-2)
    return _after_first(block, _apply(elu(x), block.first), skip)


def _after_first(block: Block, first: Tensor, skip: Tensor) -> Tensor:
    f = _apply(elu(first), block.second)
    squeeze, squeeze_bias, excite, excite_bias = block.excitation
    hidden = elu(torch.matmul(f.mean(0), squeeze) + squeeze_bias)
    return torch.addcmul(skip, f, torch.sigmoid(torch.matmul(hidden, excite) + excite_bias))


def _stack(convs: Sequence[Conv], size: int) -> Kernel:
    weight = torch.stack([conv.weight for conv in convs])
    return Kernel(winograd.kernels(weight) if winograd.fits(size) else weight, torch.stack([c.bias for c in convs]))


def _stack_excitations(parts: Sequence[Excitation]) -> tuple[Tensor, ...]:
    """Weights (groups, inputs, outputs) and biases (groups, 1, outputs) of squeeze and excite."""
    found: list[Tensor] = []
    for layers in ([part.squeeze for part in parts], [part.excite for part in parts]):
        found.append(torch.stack([layer.weight for layer in layers]).transpose(1, 2))
        found.append(torch.stack([layer.bias for layer in layers])[:, None])
    return tuple(found)


def _quieten(last: nn.Module) -> None:
    """Start near parameters of zero: else a group's spread grows with each group before it, and the KL explodes."""
    assert isinstance(last, Residual)
    for conv in (last.second, last.skip):
        if conv is not None:
            conv.weight.data.mul_(QUIET)


def _skip(block: Residual) -> Conv:
    assert block.skip is not None
    return block.skip
