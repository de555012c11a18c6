"""Networks of the local groups: q(h_j|x, ζ, h_<j) and p(h_j|ζ, h_<j), one residual network per group (App. G).

Network j reads the channels of `shared`, which all groups have in common, joined with those of the groups before it.
"""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from dvaepp.networks.residual import Residual, residual

QUIET = 0.1  # the factor by which the weights of a network's last block are smaller at the start


class LocalNetworks(nn.Module):
    """A residual network of `blocks` for each group; each group of h has `channels` channels, on maps of one size."""

    def __init__(
        self,
        shared: int,
        channels: int,
        num_groups: int,
        blocks: Sequence[str],
        generator: torch.Generator | None = None,
    ) -> None:
        super().__init__()
        self.num_groups = num_groups
        self.networks = nn.ModuleList(
            residual(shared + j * channels, blocks, generator, project=True) for j in range(num_groups)
        )
        for network in self.networks:
            _quieten(list(network.children())[-1])

    def given(self, x: Tensor) -> "Given":
        """The networks with x, the part of `shared` that comes from images and serves all samples of an image."""
        return Given(self, x)

    def walk(self, shared: Tensor) -> "LocalWalk":
        """The networks with all of `shared`, to be called for one group after the other."""
        return LocalWalk(self, shared)

    def all(self, shared: Tensor, h: Sequence[Tensor]) -> list[Tensor]:
        """The parameters of every group, where all h are known beforehand."""
        return [self.networks[j](self.side_by_side(shared, h[:j])) for j in range(self.num_groups)]

    def side_by_side(self, shared: Tensor, h: Sequence[Tensor]) -> Tensor:
        """What the network after groups h reads."""
        return torch.cat([shared, *h], 1)


class Given:
    """Local networks that have read x; the other part of `shared` is the upsampled ζ, which `walk` takes."""

    def __init__(self, networks: LocalNetworks, x: Tensor) -> None:
        self.networks, self.x = networks, x

    def repeated(self, times: int) -> "Given":
        """The same for `times` copies of the images, one after another."""
        return Given(self.networks, self.x.repeat(times, 1, 1, 1))

    def walk(self, up: Tensor) -> "LocalWalk":
        return self.networks.walk(torch.cat([self.x, up], 1))


class LocalWalk:
    """Local networks that have read all of `shared`; a call with the h so far returns the parameters of the next."""

    def __init__(self, networks: LocalNetworks, shared: Tensor) -> None:
        self.networks, self.shared = networks, shared

    def __call__(self, h: Sequence[Tensor]) -> Tensor:
        parameters: Tensor = self.networks.networks[len(h)](self.networks.side_by_side(self.shared, h))
        return parameters


def _quieten(last: nn.Module) -> None:
    """Make the last block small, so that a network starts with parameters near zero.

    Otherwise the spread of each group would be larger than that of the groups it reads, and the KL would explode.
    """
    assert isinstance(last, Residual)
    for conv in (last.second, last.skip):
        if conv is not None:
            conv.weight.data.mul_(QUIET)
