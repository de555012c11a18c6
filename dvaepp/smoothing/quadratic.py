"""What the two closed-form inverses (App. A and B) share: folding onto μ <= 1/2.

Both quadratics keep their form under (ρ, μ, ζ) -> (1-ρ, 1-μ, mirror of ζ). Folding so that μ <= 1/2 keeps every
digit where it matters: sigmoid(-|l|) is accurate when tiny, and so is 1 - ρ for ρ near one. Masks are floats of
0 and 1 and work is in place: on a CPU torch.where and fresh buffers cost more than the arithmetic.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from dvaepp.types import Parameter


class Folded(NamedTuple):
    """μ <= 1/2 and 1-ρ in the folded frame; `upright` is 1. where the frame was not turned."""

    mu: Tensor
    one_minus_rho: Tensor
    upright: Tensor


def fold(logits: Tensor, rho: Tensor) -> Folded:
    """Turn the frame where the logit is >= 0."""
    upright = torch.lt(logits, 0, out=torch.empty_like(rho))
    return Folded(logits.abs().neg_().sigmoid_(), (rho - upright).abs_(), upright)


def positive(x: Tensor) -> Tensor:
    """1. where x > 0, else 0."""
    return torch.gt(x, 0, out=torch.empty_like(x))


def same(high: Tensor, upright: Tensor) -> Tensor:
    """1. where ζ is in the upper half, given where it is (`high`) in the folded frame; overwrites `high`."""
    return torch.eq(high, upright, out=high)


def add_scaled_(x: Tensor, a: Parameter, y: Tensor) -> Tensor:
    """x += a y in one pass, for a number or a tensor a."""
    return x.addcmul_(y, a) if isinstance(a, Tensor) else x.add_(y, alpha=a)
