"""The local networks of DVAE++ (App. G) without concatenations, and all of p(h_j|ζ, h_<j) at once.

Network j reads concat(shared, h_1, ..., h_{j-1}). ELU acts on each channel by itself, and a convolution of a
concatenation is the sum of the convolutions of its parts. The first block can therefore be computed as a sum of shares.
One wide convolution gives the share of a part of `shared` for all groups at once; the share of the h is added for each
group. If all h are known, as they are for the prior in training, all networks run side by side as one grouped network.

Activations are pixel-major here, (pixels, rows, channels) or (pixels, groups, rows, channels), because the products of
minimal filtering read them in that order. The plain twin is `models.local.LocalNetworks`.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import pad

from dvaepp.kernels import policy, residual_chain
from dvaepp.kernels.convolution import pixels_after_elu
from dvaepp.kernels.pixels import to_maps, to_pixels
from dvaepp.kernels.products import linear
from dvaepp.kernels.residual_chain import ChainLayer, ResidualBlock, chain, in_groups, layers_of

# The first convolutions of this many groups over h are computed as one. Its matrix products are four times as wide,
# which makes them faster, although the zeros that stand for h which a group must not read add a fifth to the work.
BESIDE = 4


class LocalKernel:
    """The first base of compiled local networks; the second is `LocalNetworks`, whose plain methods `super()` calls."""

    num_groups: int
    networks: nn.ModuleList

    def given(self, x: Tensor) -> Any:
        cut = self._cut(x)
        return super().given(x) if cut is None else _Given(cut, cut.share(x, 0))  # type: ignore[misc]

    def walk(self, shared: Tensor) -> Any:
        cut = self._cut(shared)
        if cut is None:
            return super().walk(shared)  # type: ignore[misc]
        return _Walk(cut, cut.split(cut.share(shared, 0)), shared.shape[-1])

    def all(self, shared: Tensor, h: Sequence[Tensor]) -> list[Tensor]:
        cut = self._cut(shared)
        if cut is None:
            return super().all(shared, h)  # type: ignore[misc]
        return cut.all(cut.share(shared, 0), h, shared.shape[-1])

    def side_by_side(self, shared: Tensor, h: Sequence[Tensor]) -> Tensor:
        if not policy.takes("local_networks", (shared, *h)):
            return super().side_by_side(shared, h)  # type: ignore[misc]
        return to_maps(torch.cat([to_pixels(part) for part in (shared, *h)], -1), shared.shape[-1])

    def _cut(self, x: Tensor) -> "_Cut | None":
        """The networks with the kernels of their first blocks cut after the channels of x; None if plain forms run."""
        if not policy.takes("local_networks", (x,)):
            return None
        networks: list[list[ResidualBlock]] = [list(network.children()) for network in self.networks]  # type: ignore[arg-type]
        layers = [layers_of(blocks) for blocks in networks]
        if not residual_chain.takes(layers, x.shape[-1]):
            return None
        first_blocks = [blocks[0] for blocks in networks]
        return _Cut(first_blocks, layers, x.shape[1], min(block.first.weight.shape[1] for block in first_blocks))


class _Share(NamedTuple):
    """What some of the input channels contribute to the first convolution and to the skip of first blocks."""

    first: Tensor
    skip: Tensor

    def plus(self, other: "_Share") -> "_Share":
        return _Share(self.first + other.first, self.skip + other.skip)


class _Cut:
    """The networks of one pass, with each kernel of a first block cut in three: for x, the rest of `shared`, and h.

    A kernel is cut once, by `split`. If each use took its own slice of the kernel, the backward pass would make a
    gradient of the size of the whole kernel for every slice.
    """

    def __init__(
        self, first_blocks: Sequence[ResidualBlock], layers: Sequence[Sequence[ChainLayer]], x: int, shared: int
    ) -> None:
        self.layers = layers  # those of each network that come after the kernels that are cut here
        self.first_bias: list[Tensor] = [block.first.bias for block in first_blocks]
        self.skip_bias: list[Tensor] = [_skip(block)[1] for block in first_blocks]
        self.first: list[Sequence[Tensor]] = []
        self.skip: list[Sequence[Tensor]] = []
        for block in first_blocks:
            weight = block.first.weight
            sizes = [x, shared - x, weight.shape[1] - shared]
            self.first.append(weight.split(sizes, 1))
            self.skip.append(_skip(block)[0].flatten(1).split(sizes, 1))

    def share(self, maps: Tensor, part: int) -> _Share:
        """What one part of `shared` contributes to the first blocks of all groups; part 0 includes the biases."""
        x = to_pixels(maps)
        first = _beside(x, [pieces[part] for pieces in self.first], self.first_bias if part == 0 else ())
        skip = torch.cat([pieces[part] for pieces in self.skip])
        return _Share(first, linear(x, skip, torch.cat(self.skip_bias) if part == 0 else None))

    def split(self, share: _Share) -> list[_Share]:
        """The share of all groups as one for each group, copied so that the channels of a group are contiguous."""
        firsts, skips = ([piece.contiguous() for piece in part.chunk(len(self.layers), -1)] for part in share)
        return [_Share(first, skip) for first, skip in zip(firsts, skips, strict=True)]

    def one(self, j: int, share: _Share, before: Tensor | None, size: int) -> Tensor:
        """The output maps of network j, from its share of all of `shared` and from the joined h_1 ... h_{j-1}."""
        if before is not None:
            share = share.plus(_Share(pixels_after_elu(before, self.first[j][-1]), linear(before, self.skip[j][-1])))
        return to_maps(chain(self.layers[j], *(part[:, None] for part in share)).squeeze(1), size)

    def all(self, share: _Share, h: Sequence[Tensor], size: int) -> list[Tensor]:
        """The output maps of all networks, which run at once because all h are known."""
        groups = len(self.layers)
        if groups > 1:
            share = share.plus(self._share_of_h([to_pixels(each) for each in h]))
        first, skip = (part.unflatten(-1, (groups, -1)).transpose(1, 2).contiguous() for part in share)
        x = chain(in_groups(self.layers), first, skip)
        return [to_maps(group, size) for group in x.unbind(1)]

    def _share_of_h(self, h: Sequence[Tensor]) -> _Share:
        """What the h contribute to first blocks, computed for `BESIDE` groups at a time.

        Each of these groups may read the h before its own; the others are multiplied by zeros.
        """
        parts = []
        for begin in range(0, len(self.layers), BESIDE):
            end = min(begin + BESIDE, len(self.layers))
            before = torch.cat(list(h[: end - 1]), -1)
            firsts = [pieces[-1] for pieces in self.first[begin:end]]
            skips = [pieces[-1] for pieces in self.skip[begin:end]]
            skip = torch.cat([pad(w, (0, before.shape[-1] - w.shape[1])) for w in skips])
            parts.append(_Share(_beside(before, firsts), linear(before, skip)))
        return _Share(*(torch.cat(pieces, -1) for pieces in zip(*parts, strict=True)))


class _Given:
    """As `models.local.Given`, with the share of x computed."""

    def __init__(self, cut: _Cut, share: _Share) -> None:
        self.cut, self.share = cut, share

    def repeated(self, times: int) -> "_Given":
        return _Given(self.cut, _Share(*(part.repeat(1, times, 1) for part in self.share)))

    def walk(self, up: Tensor) -> "_Walk":
        return _Walk(self.cut, self.cut.split(self.share.plus(self.cut.share(up, 1))), up.shape[-1])


class _Walk:
    """As `models.local.LocalWalk`, with the share of all of `shared` computed.

    Each new h is joined to those before it, so that the backward pass adds one gradient to each h. If every group
    concatenated all h before it anew, each h would get a gradient from all later groups.
    """

    def __init__(self, cut: _Cut, shares: Sequence[_Share], size: int) -> None:
        self.cut, self.shares, self.size = cut, shares, size
        self.before: Tensor | None = None

    def __call__(self, h: Sequence[Tensor]) -> Tensor:
        if h:
            last = to_pixels(h[-1])
            self.before = last if self.before is None else torch.cat([self.before, last], -1)
        return self.cut.one(len(h), self.shares[len(h)], self.before, self.size)


def _beside(x: Tensor, weights: Sequence[Tensor], biases: Sequence[Tensor] = ()) -> Tensor:
    """The 3x3 convolutions of ELU(x), x (pixels, rows, channels), with several kernels, their outputs joined.

    A kernel that has fewer input channels than x reads the first ones.
    """
    weight = torch.cat([pad(w, (0, 0, 0, 0, 0, x.shape[-1] - w.shape[1])) for w in weights])
    y = pixels_after_elu(x, weight)
    return y + torch.cat(list(biases)) if biases else y


def _skip(block: ResidualBlock) -> tuple[Tensor, Tensor]:
    """The 1x1 kernel and the bias in the skip of a first block, which in a local network always has them."""
    assert block.skip is not None
    return block.skip.weight, block.skip.bias
