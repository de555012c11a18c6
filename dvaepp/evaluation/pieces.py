"""Functions of many images, which are split into pieces that several processes can share.

The noise of a piece depends on the seed and its number alone, so that it does not matter which process takes it.
"""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from dvaepp import distributed

IMAGES_AT_ONCE = 100


def in_pieces(
    x: Tensor,
    function: Callable[[Tensor, torch.Generator], Tensor],
    *,
    seed: int,
    device: str,
    advance: Callable[[int], None] = lambda n: None,
) -> Tensor:
    """function(images, generator) -> (images, columns) for all images, float64; processes take the pieces in turns."""
    pieces = x.split(IMAGES_AT_ONCE)
    found: dict[int, Tensor] = {}
    for index, piece in enumerate(pieces):
        if index % distributed.size() == distributed.rank():
            generator = torch.Generator(device).manual_seed((seed * 1_000_003 + index) % 2**63)
            found[index] = function(piece.to(device), generator).double()
        advance(len(piece))
    return _together(pieces, found, device)


def _together(pieces: Sequence[Tensor], found: dict[int, Tensor], device: str) -> Tensor:
    if distributed.size() == 1:
        return torch.cat([found[index] for index in range(len(pieces))])
    (columns,) = distributed.largest(max((result.shape[1] for result in found.values()), default=0))
    for index, piece in enumerate(pieces):
        found.setdefault(index, torch.zeros(len(piece), int(columns), dtype=torch.float64, device=device))
    whole = torch.cat([found[index] for index in range(len(pieces))])
    # A row is zero in all processes but one, so that the sum over processes is the row.
    return distributed.total(whole)
