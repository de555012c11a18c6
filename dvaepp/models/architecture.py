"""The networks of DVAE++ as the paper's Table 4 writes them."""

from collections.abc import Sequence
from typing import NamedTuple


class Architecture(NamedTuple):
    """Blocks of the paper's Table 4, each a number of filters with d or u where it halves or doubles the map.

    `posterior` and `prior` leave out their last block, whose width follows from the local units.
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
