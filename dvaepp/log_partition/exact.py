"""log Z by summation: enumerate some units, sum the independent rest analytically.

    Z = Σ_{z_C} e^(-E_C(z_C)) Π_{i in I} (1 + e^(b_i + Σ_j W_ji z_j))

I is the largest block of mutually independent units, such as the larger side of an RBM, and C holds the others. The
states of C are taken in pieces, so that memory stays small. What the low bits contribute is computed once for all their
states; a piece is one setting of the high bits with all states of the low ones.
"""

import torch
from torch import Tensor

from dvaepp.errors import UsageError
from dvaepp.log_partition.result import LogPartition
from dvaepp.priors.base import BoltzmannPrior
from dvaepp.progress import progress

MAX_UNITS = 24
LOW_BITS = 13  # 8192 states x summed units x 8 bytes per piece


def num_enumerated(prior: BoltzmannPrior) -> int:
    """How many units `exact` must enumerate."""
    return prior.num_units - max(len(block) for block in prior.blocks())


def split_units(prior: BoltzmannPrior) -> tuple[Tensor, Tensor]:
    """The units C to enumerate and the units I, independent of each other, to sum analytically."""
    blocks = prior.blocks()
    largest = max(range(len(blocks)), key=lambda k: len(blocks[k]))
    rest = [block for k, block in enumerate(blocks) if k != largest]
    return torch.cat(rest) if rest else blocks[largest][:0], blocks[largest]


def log_sums(prior: BoltzmannPrior, z: Tensor) -> Tensor:
    """log Σ_{z_I} e^(-E) for settings z (settings, units of C) in float64."""
    enumerated, summed = split_units(prior)
    bias, matrix = (p.double() for p in prior.couplings())
    field = bias[summed] + z @ matrix[enumerated][:, summed]
    inside = _negative_energy(z, bias[enumerated], matrix[enumerated][:, enumerated])
    return inside + torch.nn.functional.softplus(field, threshold=40.0).sum(1)


@torch.no_grad()
def exact(prior: BoltzmannPrior, show_progress: bool | None = None) -> LogPartition:
    """log Z in float64 to rounding; at most 24 enumerated units.

    Choose it for machines of at most 24 units on the smaller side.

    >>> round(exact(RBM(2, 2)).value, 6)  # 4 log 2
    2.772589
    """
    prior.check()
    enumerated, summed = split_units(prior)
    n = len(enumerated)
    if n > MAX_UNITS:
        raise UsageError(
            f"exact log Z would enumerate 2^{n} states; at most {MAX_UNITS} units on the smaller side are feasible. "
            "Use method='tempering' or 'ais'"
        )
    bias, matrix = (p.double() for p in prior.couplings())
    inner, across = matrix[enumerated][:, enumerated], matrix[enumerated][:, summed]
    low_bits = min(n, LOW_BITS)
    low = _states(low_bits, bias)
    low_log = _negative_energy(low, bias[enumerated[:low_bits]], inner[:low_bits, :low_bits])
    low_field = bias[summed] + low @ across[:low_bits]
    high_bits = torch.arange(n - low_bits, dtype=torch.int64, device=bias.device)
    high_bias, high_inner = bias[enumerated[low_bits:]], inner[low_bits:, low_bits:]
    pieces = []
    with progress("exact log Z", 2 ** (n - low_bits), show_progress) as advance:
        for setting in range(2 ** (n - low_bits)):
            high = (setting >> high_bits & 1).to(bias)
            field = low_field + high @ across[low_bits:]
            log_weight = low_log + low @ (inner[:low_bits, low_bits:] @ high)
            log_weight += _negative_energy(high[None], high_bias, high_inner)
            log_weight += torch.nn.functional.softplus(field, threshold=40.0).sum(1)
            pieces.append(torch.logsumexp(log_weight, 0))
            advance(1)
    value = torch.logsumexp(torch.stack(pieces), 0).item()
    return LogPartition(value, 0.0, "exact", {"num_enumerated": n, "warnings": []})


def _negative_energy(z: Tensor, bias: Tensor, matrix: Tensor) -> Tensor:
    return z @ bias + 0.5 * ((z @ matrix) * z).sum(-1)


def _states(bits: int, like: Tensor) -> Tensor:
    """All 2^bits states as rows."""
    numbers = torch.arange(2**bits, dtype=torch.int64, device=like.device)
    return (numbers[:, None] >> torch.arange(bits, dtype=torch.int64, device=like.device) & 1).to(like)
