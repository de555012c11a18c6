"""How much of its codes a quantiser uses: entropies of the bits and of whole codes."""

import math
from typing import NamedTuple

import torch
from torch import Tensor

from dvaepp.errors import UsageError
from dvaepp.numerics import bernoulli_entropy

MOST_BITS = 62  # a code as one int64


class Usage(NamedTuple):
    """Entropies in bits. `bit_entropy` (bits,) is that of each unit, at most 1; `code_entropy` that of whole codes.

    `perplexity` is 2 to the power of `code_entropy`: as many codes, used equally, would have it. `num_codes` counts
    those that occurred. A sample of n codes can show at most log2 n bits.

    Choose it to see whether a quantiser uses its codes: a perplexity near 1 means that all inputs share one.

    >>> usage(torch.tensor([[0, 1], [1, 0]])).num_codes
    2
    """

    bit_entropy: Tensor
    code_entropy: float
    perplexity: float
    num_codes: int


def usage(codes: Tensor) -> Usage:
    """Statistics of codes (..., bits), channels last, of zeros and ones; gather those of a whole validation set.

    Choose it at every validation of a quantiser.

    >>> usage(torch.tensor([[0, 1], [1, 0], [0, 1], [1, 0]])).perplexity
    2.0
    """
    flat = codes.reshape(-1, codes.shape[-1])
    if not len(flat):
        raise UsageError("usage needs at least one code")
    _check_binary(flat)
    share = flat.double().mean(0)
    counts = _counts(flat).double()
    probability = counts / counts.sum()
    entropy = float(-(probability * probability.log2()).sum())
    per_bit = bernoulli_entropy(torch.logit(share)) / math.log(2)
    return Usage(torch.where((share > 0) & (share < 1), per_bit, 0.0), entropy, 2**entropy, len(counts))


def _counts(codes: Tensor) -> Tensor:
    """How often each code (n, bits) occurs; numbers are sorted faster than rows, where a code fits one."""
    if codes.shape[1] > MOST_BITS:
        return torch.unique(codes, dim=0, return_counts=True)[1]
    return torch.unique(code_numbers(codes), return_counts=True)[1]


def _check_binary(codes: Tensor) -> None:
    if not bool(((codes == 0) | (codes == 1)).all()):
        raise UsageError("codes must be 0 or 1; give the quantiser's codes, not its smoothed zeta")


def code_numbers(codes: Tensor) -> Tensor:
    """Every code (..., bits) as one whole number (...), its first bit counting most."""
    bits = codes.shape[-1]
    if bits > MOST_BITS:
        raise UsageError(f"codes of {bits} bits have no number of 64 bits; at most {MOST_BITS} do")
    _check_binary(codes)
    powers = 2 ** torch.arange(bits - 1, -1, -1, dtype=torch.int64, device=codes.device)
    return (codes.to(torch.int64) * powers).sum(-1)


def codes_of_numbers(numbers: Tensor, bits: int) -> Tensor:
    """The inverse of `code_numbers`: (...) to (..., bits)."""
    shifts = torch.arange(bits - 1, -1, -1, dtype=torch.int64, device=numbers.device)
    return numbers[..., None] >> shifts & 1
