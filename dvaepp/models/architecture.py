"""The networks of DVAE++ as the paper's Table 4 writes them."""

from collections.abc import Sequence
from typing import NamedTuple


class Architecture(NamedTuple):
    """The networks of DVAE++, each a list of residual blocks as `networks.residual.parse` reads them, such as "32d".

    `posterior` and `prior` are those of a local group without their last block, whose width follows from its units.
    """

    down1: Sequence[str]
    down2: Sequence[str]
    upsample: Sequence[str]
    posterior: Sequence[str]
    prior: Sequence[str]
    context: Sequence[str]
    upsamples: Sequence[Sequence[str]]
    input_filters: int = 32
    image_size: int = 32
    dense: Sequence[int] = ()
