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
from torch.nn.functional import pad

from dvaepp.networks import wide
from dvaepp.networks.conv import Conv
from dvaepp.networks.grouped import after_elu, chain
from dvaepp.networks.linear import linear
from dvaepp.networks.pixels import to_maps, to_pixels
from dvaepp.networks.residual import Residual, residual

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

    @property
    def ends(self) -> list[int]:
        """Groups whose h before `Cut.beside` asks for: the last of those that it takes at a time."""
        return [min(begin + BESIDE, self.num_groups) - 1 for begin in range(0, self.num_groups, BESIDE)]

    def cut(self, *parts: int) -> "Cut":
        """For one pass: `shared` comes in parts of these channels."""
        return Cut([[b for b in network.children() if isinstance(b, Residual)] for network in self.networks], parts)


class Cut:
    """Networks of a pass, whose first convolutions are cut into those of each part of `shared` and of all h before.

    All cuts of a kernel are made at once: each by itself would bring back a gradient of the whole kernel's size.
    """

    def __init__(self, networks: Sequence[Sequence[Residual]], parts: Sequence[int]) -> None:
        self.networks = networks
        self.first_bias: list[Tensor] = [blocks[0].first.bias for blocks in networks]
        self.skip_bias: list[Tensor] = [_skip(blocks[0]).bias for blocks in networks]
        self.first: list[Sequence[Tensor]] = []
        self.skip: list[Sequence[Tensor]] = []
        for blocks in networks:
            weight = blocks[0].first.weight
            sizes = [*parts, weight.shape[1] - sum(parts)]
            self.first.append(weight.split(sizes, 1))
            self.skip.append(_skip(blocks[0]).weight.flatten(1).split(sizes, 1))

    def share(self, x: Tensor, part: int = 0) -> Share:
        """Of a part of `shared`, for all groups side by side; the first brings the biases."""
        x = to_pixels(x)
        first = _beside_after_elu(x, [pieces[part] for pieces in self.first], self.first_bias if part == 0 else None)
        skip = torch.cat([pieces[part] for pieces in self.skip])
        return Share(first, linear(x, skip, torch.cat(self.skip_bias) if part == 0 else None))

    def split(self, share: Share) -> list[Share]:
        """The groups of a share, each with its channels together again."""
        firsts, skips = ([piece.contiguous() for piece in part.chunk(len(self.networks), -1)] for part in share)
        return [Share(first, skip) for first, skip in zip(firsts, skips, strict=True)]

    def one(self, j: int, share: Share, before: Tensor | None, size: int) -> Tensor:
        """Network j from its share of all of `shared` and the joined h_1 ... h_{j-1}: maps."""
        if before is not None:
            first = after_elu(before[:, None], [self.first[j][-1]]).squeeze(1)
            share = share.plus(Share(first, linear(before, self.skip[j][-1])))
        blocks = [[block] for block in self.networks[j]]
        return to_maps(chain(blocks, *(part[:, None] for part in share)).squeeze(1), size)

    def beside(self, share: Share, seen: Sequence[Tensor | None], size: int) -> list[Tensor]:
        """All networks at once, given the joined h before each of `ends`: the outputs of every group, maps."""
        groups = len(self.networks)
        if groups > 1:
            share = share.plus(self._share_of_h([before for before in seen if before is not None]))
        first, skip = (part.unflatten(-1, (groups, -1)).transpose(1, 2).contiguous() for part in share)
        x = chain(list(zip(*self.networks, strict=True)), first, skip)
        return [to_maps(group, size) for group in x.unbind(1)]

    def _share_of_h(self, seen: Sequence[Tensor]) -> Share:
        """Some groups at a time, as wide as the widest of them: zeros stand for the h that a group must not see."""
        parts = []
        for begin, before in zip(range(0, len(self.networks), BESIDE), seen, strict=True):
            firsts = [pieces[-1] for pieces in self.first[begin : begin + BESIDE]]
            skips = [pieces[-1] for pieces in self.skip[begin : begin + BESIDE]]
            first = _beside_after_elu(before, firsts)
            skip = torch.cat([pad(w, (0, before.shape[-1] - w.shape[1])) for w in skips])
            parts.append(Share(first, linear(before, skip)))
        return Share(*(torch.cat(pieces, -1) for pieces in zip(*parts, strict=True)))


def joined(before: Tensor | None, h: Tensor) -> Tensor:
    """Groups beside each other, (pixels, rows, channels), with one more (maps).

    Joined as they come, each brings back one gradient; in a concatenation for every later group it would bring many.
    """
    return to_pixels(h) if before is None else torch.cat([before, to_pixels(h)], -1)


def _beside_after_elu(x: Tensor, weights: Sequence[Tensor], biases: Sequence[Tensor] | None = None) -> Tensor:
    """3x3 convolutions of one ELU(x), (pixels, rows, channels), with several kernels: their outputs side by side.

    Kernels of fewer channels see the first ones.
    """
    if wide.takes(x, weights):
        return wide.after_elu(x, weights, biases)
    weight = torch.cat([pad(w, (0, 0, 0, 0, 0, x.shape[-1] - w.shape[1])) for w in weights])
    bias = None if biases is None else torch.cat(list(biases))
    return after_elu(x[:, None], [weight], None if bias is None else [bias]).squeeze(1)


def _quieten(last: nn.Module) -> None:
    """Start near parameters of zero: else a group's spread grows with each group before it, and the KL explodes."""
    assert isinstance(last, Residual)
    for conv in (last.second, last.skip):
        if conv is not None:
            conv.weight.data.mul_(QUIET)


def _skip(block: Residual) -> Conv:
    assert block.skip is not None
    return block.skip
