"""Residual blocks with squeeze-and-excitation (Sec. 6.2, App. G), and chains of them.

    block(x) = skip(x) + s · f,   f = conv(ELU(conv(ELU(x)))),   s = σ(W₂ ELU(W₁ mean(f)))      (reduction ratio 4)

The first convolution resizes: stride 2 halves the map, a transposed one doubles it. The skip is the identity where the
shape stays, else a 1x1 convolution of the same stride. All kernels but the skips' are 3x3. What the paper leaves open
(order inside a block, kernels, initial values) is in docs/paper_map.md.
"""

import math
import re
from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn.functional import elu

from dvaepp.networks.convolution import Conv
from dvaepp.networks.excitation import Excitation

BLOCK = re.compile(r"(\d+)([du]?)")


class Residual(nn.Module):
    """One block; `project` makes the skip a 1x1 convolution even where the shape stays."""

    def __init__(
        self,
        inputs: int,
        outputs: int,
        resize: str = "",
        generator: torch.Generator | None = None,
        *,
        project: bool = False,
    ) -> None:
        super().__init__()
        self.first = Conv(inputs, outputs, 3, resize, generator)
        self.second = Conv(outputs, outputs, 3, "", generator)
        self.excitation = Excitation(outputs, generator)
        same = inputs == outputs and not resize and not project
        self.skip = None if same else Conv(inputs, outputs, 1, resize, generator)

    def forward(self, x: Tensor) -> Tensor:
        f = self.second(elu(self.first(elu(x))))
        skip: Tensor = x if self.skip is None else self.skip(x)
        return skip + self.excitation(f)


def parse(block: str) -> tuple[int, str]:
    """Filters and resizing of "32", "32d" (halves the map) or "32u" (doubles it), as in the paper's Table 4."""
    found = BLOCK.fullmatch(block)
    if not found:
        raise ValueError(f"a block is a number of filters with d or u where it resizes, such as 32d; got {block!r}")
    return int(found[1]), found[2]


def factor(blocks: Sequence[str]) -> float:
    """By how much a chain scales its map: 1/2 for each "d", 2 for each "u"."""
    return math.prod({"": 1.0, "d": 0.5, "u": 2.0}[parse(block)[1]] for block in blocks)


def residual(
    inputs: int, blocks: Sequence[str], generator: torch.Generator | None = None, *, project: bool = False
) -> nn.Sequential:
    """A chain of residual blocks, e.g. residual(1, ("32d", "32", "64d")); `project` concerns the first one's skip."""
    layers = []
    for index, block in enumerate(blocks):
        outputs, resize = parse(block)
        layers.append(Residual(inputs, outputs, resize, generator, project=project and index == 0))
        inputs = outputs
    return nn.Sequential(*layers)
