"""The way from one code to another, one bit at a time.

Every order of the bits that differ is a way. Under a Boltzmann prior each step takes the bit whose flip lowers the
energy most, or raises it least, so that the codes on the way stay as probable as a greedy choice can keep them. The
energy of a flip needs no new sum: E(z with z_i flipped) - E(z) = (2 z_i - 1) l_i, where l_i is the logit of
p(z_i = 1 | the rest).
"""

import torch
from torch import Tensor

from dvaepp.priors.base import BoltzmannPrior


def flip_energies(prior: BoltzmannPrior, z: Tensor) -> Tensor:
    """By how much each single flip raises the energy of z (..., units)."""
    return (2 * z - 1) * prior.conditional_logits(z, slice(None))


def walk(start: Tensor, end: Tensor, prior: BoltzmannPrior | None) -> tuple[list[int], Tensor]:
    """The units that are flipped in turn, and the codes (flips + 1, units) from `start` to `end`."""
    z, left = start.clone(), start != end
    flipped, codes = [], [z.clone()]
    while bool(left.any()):
        if prior is None:
            unit = int(left.nonzero()[0])
        else:
            unit = int(torch.where(left, flip_energies(prior, z), torch.inf).argmin())
        z[unit], left[unit] = end[unit], False
        flipped.append(unit)
        codes.append(z.clone())
    return flipped, torch.stack(codes)
