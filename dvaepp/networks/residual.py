"""Residual blocks with squeeze-and-excitation (Sec. 6.2, App. G), and chains of them.

    block(x) = skip(x) + s · f,   f = conv(ELU(conv(ELU(x)))),   s = σ(W₂ ELU(W₁ mean(f)))      (reduction ratio 4)

The first convolution of a block changes the size of the map: one of stride 2 halves it, a transposed one doubles it.
The skip is the identity if the shape stays the same, and otherwise a 1x1 convolution of the same stride. All other
kernels are 3x3. The paper does not state the order inside a block, the kernels and the initial values;
docs/paper_map.md says what was chosen and why.
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
    """One block; with `project` its skip is a 1x1 convolution even if the shape stays the same.

    Choose it for a single block; `residual` makes a chain of them.

    >>> Residual(3, 8, "d")(torch.zeros(2, 3, 16, 16)).shape
    torch.Size([2, 8, 8, 8])
    """

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
    """A chain of residual blocks, written as in the paper's Table 4; `project` is that of the first block.

    Choose it for convolutional encoders and decoders of your own.

    >>> residual(1, ("8d", "8", "16d"))(torch.zeros(2, 1, 16, 16)).shape
    torch.Size([2, 16, 4, 4])
    """
    layers = []
    for index, block in enumerate(blocks):
        outputs, resize = parse(block)
        layers.append(Residual(inputs, outputs, resize, generator, project=project and index == 0))
        inputs = outputs
    return nn.Sequential(*layers)
