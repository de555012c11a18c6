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
from torch.nn.functional import linear, pad

from dvaepp.networks.grouped import after_elu, chain
from dvaepp.networks.residual import Conv, Residual, residual

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
        biases = [conv.bias for conv in firsts] if start == 0 else None
        first = _beside_after_elu(x, [conv.weight[:, start:stop] for conv in firsts], biases)
        bias = torch.cat([conv.bias for conv in skips]) if start == 0 else None
        skip = linear(x, torch.cat([conv.weight[:, start:stop, 0, 0] for conv in skips]), bias)
        return Share(first, skip)

    def split(self, share: Share) -> list[Share]:
        """The groups of a share, each with its channels together again."""
        firsts, skips = ([piece.contiguous() for piece in part.chunk(self.num_groups, -1)] for part in share)
        return [Share(first, skip) for first, skip in zip(firsts, skips, strict=True)]

    def one(self, j: int, share: Share, h: Sequence[Tensor], size: int) -> Tensor:
        """Network j from its share of all shared channels and h_1 ... h_{j-1} (maps)."""
        blocks = self._network(j)
        if h:
            before = torch.cat([to_pixels(group) for group in h], -1)
            first = after_elu(before[:, None], [blocks[0].first.weight[:, self.shared :]])[:, 0]
            share = share.plus(Share(first, linear(before, _skip(blocks[0]).weight[:, self.shared :, 0, 0])))
        return to_maps(chain([[block] for block in blocks], *(part[:, None] for part in share))[:, 0], size)

    def beside(self, share: Share, h: Sequence[Tensor], size: int) -> list[Tensor]:
        """All networks at once, given all h: the outputs of every group, maps."""
        if self.num_groups > 1:
            before = torch.cat([to_pixels(group) for group in h[: self.num_groups - 1]], -1)
            share = share.plus(self._share_of_h(before))
        first, skip = (part.unflatten(-1, (self.num_groups, -1)).transpose(1, 2).contiguous() for part in share)
        x = chain([self._blocks(place) for place in range(len(self._network(0)))], first, skip)
        return [to_maps(group, size) for group in x.unbind(1)]

    def _share_of_h(self, h: Tensor) -> Share:
        parts = []
        for begin in range(0, self.num_groups, BESIDE):
            blocks = self._blocks(0)[begin : begin + BESIDE]
            width = (begin + len(blocks) - 1) * self.channels
            seen = h[..., :width]
            first = _beside_after_elu(seen, [self._widened(block.first, width) for block in blocks])
            skip = torch.cat([self._widened(_skip(block), width) for block in blocks])
            parts.append(Share(first, linear(seen, skip[:, :, 0, 0])))
        return Share(*(torch.cat(pieces, -1) for pieces in zip(*parts, strict=True)))

    def _widened(self, conv: Conv, width: int) -> Tensor:
        """A first convolution's weights over h, with zeros for the groups it must not see."""
        weight = conv.weight[:, self.shared :]
        return pad(weight, (0, 0, 0, 0, 0, width - weight.shape[1]))

    def _blocks(self, place: int) -> list[Residual]:
        """The blocks at one place of all networks."""
        return [self._network(j)[place] for j in range(self.num_groups)]

    def _network(self, j: int) -> list[Residual]:
        return [block for block in self.networks[j].children() if isinstance(block, Residual)]


def to_pixels(x: Tensor) -> Tensor:
    """(rows, channels, height, width) -> (pixels, rows, channels)."""
    return x.permute(2, 3, 0, 1).flatten(0, 1)


def to_maps(x: Tensor, size: int) -> Tensor:
    """(pixels, rows, channels) -> (rows, channels, size, size), without copying."""
    return x.unflatten(0, (size, size)).permute(2, 3, 0, 1)


def _beside_after_elu(x: Tensor, weights: Sequence[Tensor], biases: Sequence[Tensor] | None = None) -> Tensor:
    """3x3 convolutions of one ELU(x), (pixels, rows, channels), with several kernels: their outputs side by side."""
    weight = torch.cat(list(weights))
    bias = None if biases is None else torch.cat(list(biases))
    return after_elu(x[:, None], [weight], None if bias is None else [bias])[:, 0]


def _quieten(last: nn.Module) -> None:
    """Start near parameters of zero: else a group's spread grows with each group before it, and the KL explodes."""
    assert isinstance(last, Residual)
    for conv in (last.second, last.skip):
        if conv is not None:
            conv.weight.data.mul_(QUIET)


def _skip(block: Residual) -> Conv:
    assert block.skip is not None
    return block.skip
