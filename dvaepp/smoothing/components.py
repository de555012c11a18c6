"""Sampling a mixture by its components: first z, then ζ ~ r(ζ|z), both from one uniform number ρ.

    z = 1[ρ > 1-μ],   u = ρ / (1-μ) for z = 0,   u = (1-ρ) / μ for z = 1,

where u is the remainder of ρ, uniform again and independent of z. A draw t of r(ζ|0) made from u is ζ for z = 0; for
z = 1 its mirror image is. Nothing is inverted but one component, so that mixtures without a closed inverse cost no more
than those with one. As a function of μ at fixed ρ this ζ jumps where z does, so that its own derivative is useless. The
derivative attached to it is that of the implicit function F(ζ, μ) = ρ: it depends on ζ and μ alone and is right for
every way of drawing ζ ~ q(ζ|x) (Figurnov et al. 2018).
"""

from typing import NamedTuple

import torch
from torch import Tensor


class Components(NamedTuple):
    """z as 0. or 1., its probability `share` under q(z|x), that of the other z, and the remainder u of ρ."""

    z: Tensor
    share: Tensor
    rest: Tensor
    u: Tensor


def split(logits: Tensor, rho: Tensor) -> Components:
    """z and the remainder u of ρ; both probabilities keep their digits where they are small."""
    one, zero = torch.sigmoid(logits), logits.neg().sigmoid_()
    z = torch.gt(rho, zero, out=torch.empty_like(rho))
    share, rest = torch.lerp(zero, one, z), torch.lerp(one, zero, z)
    # Rounding may count ρ = 0 or 1 to a z of probability zero, hence the smallest number and the clamp.
    u = (rho - z).abs_().div_(share.clamp_min(torch.finfo(rho.dtype).tiny)).clamp_(0, 1)
    return Components(z, share, rest, u)
