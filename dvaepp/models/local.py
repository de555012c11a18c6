"""Networks of the local groups: q(h_j|x, ζ, h_<j) and p(h_j|ζ, h_<j), one residual network per group (App. G).

Network j acts on concat(shared, h_1, ..., h_{j-1}). ELU works channel by channel and a convolution over a concatenation
is a sum of convolutions: the first block splits into a share of `shared`, one wide convolution for all groups, and one
of the h. Where all h are known, the networks run beside each other as one grouped network. Both ways compute the same
function as network after network on a concatenation (`plain`), which a test checks.
"""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import conv2d, elu, pad

from dvaepp.networks import small_maps
from dvaepp.networks.residual import Conv, Matrices, Residual, convolve, residual

BESIDE = 4  # groups whose first convolutions over h are one: products four times as wide for 1.2 times their work

QUIET = 0.1  # initial scale of what a network's last block adds


class Share(NamedTuple):
    """What some input channels give to the first convolution and to the skip of first blocks."""

    first: Tensor
    skip: Tensor

    def plus(self, other: "Share") -> "Share":
        return Share(self.first + other.first, self.skip + other.skip)


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
        bias = [torch.cat([conv.bias for conv in convs]) if start == 0 else None for convs in (firsts, skips)]
        first = convolve(elu(x), torch.cat([conv.weight[:, start:stop] for conv in firsts]), bias[0])
        return Share(first, convolve(x, torch.cat([conv.weight[:, start:stop] for conv in skips]), bias[1]))

    def split(self, share: Share) -> list[Share]:
        """The groups of a share, each with its channels together again: what follows is fast on nothing else."""
        firsts, skips = ([_compact(piece) for piece in part.chunk(self.num_groups, 1)] for part in share)
        return [Share(first, skip) for first, skip in zip(firsts, skips, strict=True)]

    def prepared(self, size: int) -> list[list[Matrices]]:
        """For maps of `size`: of every network and block the matrices of its convolutions, made for all groups at once.

        Each is used once in a pass, but making them one by one takes far more calls than using them.
        """
        by_block = []
        for place in range(len(list(self.networks[0].children()))):
            blocks = self._blocks(place)
            firsts = self._matrices([block.first for block in blocks], size) if place > 0 else [None] * len(blocks)
            seconds = self._matrices([block.second for block in blocks], size)
            by_block.append([Matrices(first, second) for first, second in zip(firsts, seconds, strict=True)])
        return [list(blocks) for blocks in zip(*by_block, strict=True)]

    def _matrices(self, convs: Sequence[Conv], size: int) -> list[Tensor | None]:
        outputs, inputs = convs[0].weight.shape[:2]
        if not small_maps.pays(size, "", inputs, outputs):
            return [None] * len(convs)
        return list(small_maps.matrices(torch.stack([conv.weight for conv in convs]), size).unbind())

    def one(self, j: int, share: Share, h: Sequence[Tensor], prepared: Sequence[Matrices]) -> Tensor:
        """Network j from its share of all shared channels, h_1 ... h_{j-1} and its matrices."""
        network = [block for block in self.networks[j].children() if isinstance(block, Residual)]
        if h:
            before = torch.cat(list(h), 1)
            first = convolve(elu(before), network[0].first.weight[:, self.shared :], None)
            share = share.plus(Share(first, convolve(before, _skip(network[0]).weight[:, self.shared :], None)))
        x = network[0].after_first(*share, prepared[0].second)
        for block, matrices in zip(network[1:], prepared[1:], strict=True):
            x = block(x, matrices)
        return x

    def beside(self, share: Share, h: Sequence[Tensor]) -> Tensor:
        """All networks at once, given all h: outputs (rows, num_groups · width, ...), group after group."""
        if self.num_groups > 1:
            share = share.plus(self._share_of_h(torch.cat(list(h[: self.num_groups - 1]), 1)))
        x = _after_first(self._blocks(0), *share)
        for place in range(1, len(list(self.networks[0].children()))):
            blocks = self._blocks(place)
            first = _grouped([block.first for block in blocks], elu(x))
            skip = x if blocks[0].skip is None else _grouped([_skip(block) for block in blocks], x)
            x = _after_first(blocks, first, skip)
        return x

    def _share_of_h(self, h: Tensor) -> Share:
        parts = []
        active = elu(h)
        for begin in range(0, self.num_groups, BESIDE):
            blocks = self._blocks(0)[begin : begin + BESIDE]
            width = (begin + len(blocks) - 1) * self.channels
            first = torch.cat([self._widened(block.first, width) for block in blocks])
            skip = torch.cat([self._widened(_skip(block), width) for block in blocks])
            parts.append(Share(convolve(active[:, :width], first, None), convolve(h[:, :width], skip, None)))
        return Share(*(torch.cat(pieces, 1) for pieces in zip(*parts, strict=True)))

    def _widened(self, conv: Conv, width: int) -> Tensor:
        """A first convolution's weights over h, with zeros for the groups it must not see."""
        weight = conv.weight[:, self.shared :]
        return pad(weight, (0, 0, 0, 0, 0, width - weight.shape[1]))

    def _blocks(self, place: int) -> list[Residual]:
        found = [list(network.children())[place] for network in self.networks]
        return [block for block in found if isinstance(block, Residual)]


def _compact(x: Tensor) -> Tensor:
    return x.contiguous(memory_format=torch.channels_last)


def _quieten(last: nn.Module) -> None:
    """Start near parameters of zero: else a group's spread grows with each group before it, and the KL explodes."""
    assert isinstance(last, Residual)
    for conv in (last.second, last.skip):
        if conv is not None:
            conv.weight.data.mul_(QUIET)


def _skip(block: Residual) -> Conv:
    assert block.skip is not None
    return block.skip


def _grouped(convs: Sequence[Conv], x: Tensor) -> Tensor:
    """The same convolution of every group, each on its own channels."""
    outputs, inputs, kernel, _ = convs[0].weight.shape
    if kernel == 3 and small_maps.pays(x.shape[-1], "", inputs, outputs, len(convs)):
        return small_maps.grouped(x, [conv.weight for conv in convs], [conv.bias for conv in convs])
    weight, bias = torch.cat([conv.weight for conv in convs]), torch.cat([conv.bias for conv in convs])
    return conv2d(x, weight, bias, padding=convs[0].kernel // 2, groups=len(convs))


def _after_first(blocks: Sequence[Residual], first: Tensor, skip: Tensor) -> Tensor:
    f = _grouped([block.second for block in blocks], elu(first))
    mean = f.mean((2, 3)).unflatten(1, (len(blocks), -1)).transpose(0, 1)  # (groups, rows, channels)
    squeezes, excites = zip(*((b.excitation.squeeze, b.excitation.excite) for b in blocks), strict=True)
    hidden = elu(torch.baddbmm(_biases(squeezes), mean, _weights(squeezes)))
    scale = torch.sigmoid(torch.baddbmm(_biases(excites), hidden, _weights(excites)))
    return skip + f * scale.transpose(0, 1).flatten(1)[:, :, None, None]


def _weights(layers: Sequence[nn.Linear]) -> Tensor:
    return torch.stack([layer.weight for layer in layers]).transpose(1, 2)


def _biases(layers: Sequence[nn.Linear]) -> Tensor:
    return torch.stack([layer.bias for layer in layers])[:, None]
