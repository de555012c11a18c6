"""Exponentials in whole numbers, the same on every machine: fixed point in int64, and no table.

Libraries round exp and tanh differently; a decoder whose probability differs from the encoder's in the last bit loses
everything after it. Here numbers are integers n that stand for n / 2^f: logits with f = LOGIT, unit intervals with
f = UNIT. Additions, products, shifts and floor divisions of integers have one right answer.
"""

import numpy as np
import numpy.typing as npt

from dvaepp.codes.ans import PRECISION, TOTAL

Integers = npt.NDArray[np.int64]

LOGIT = 20  # fractional bits of logits and of what goes into a tanh
UNIT = 30  # fractional bits of numbers from 0 to 1
ONE = 1 << UNIT
LOG2_E = 1549082005  # 2^30 / ln 2
LN_2 = 744261118  # 2^30 ln 2
LARGEST = 40 << LOGIT  # e^-40 is nothing in 30 bits
TERMS = 12  # of the series of e^-u for u < ln 2: the next is 2e-12
LOG_TERMS = 9  # of the series of artanh s for s <= 1/3: the next is 4e-11


def exp_minus(t: Integers) -> Integers:
    """e^-t at UNIT for t >= 0 at LOGIT: 2^-n e^-u with t / ln 2 = n + u / ln 2, and the series of e^-u nested.

    e^-u = 1 - u/1 (1 - u/2 (1 - u/3 (...))).
    """
    scaled = np.minimum(t, LARGEST) * LOG2_E  # at LOGIT + UNIT
    u = (scaled >> LOGIT & ONE - 1) * LN_2 >> UNIT
    found = np.full_like(u, ONE)
    for k in range(TERMS, 0, -1):
        found = ONE - (u * found >> UNIT) // k
    return found >> (scaled >> LOGIT + UNIT)


def frequencies(logits: Integers) -> Integers:
    """Slots of symbol 1 for logits at LOGIT: sigmoid in units of 2^-P, never none of them and never all."""
    likelier = (ONE << UNIT) // (ONE + exp_minus(np.abs(logits)))
    probability = np.where(logits >= 0, likelier, ONE - likelier)
    return np.clip((probability + (1 << UNIT - PRECISION - 1)) >> UNIT - PRECISION, 1, TOTAL - 1)


def tanh(x: Integers, bits: int) -> Integers:
    """tanh of x at LOGIT, with `bits` fractional bits: (1 - e^-2|x|) / (1 + e^-2|x|) with the sign of x."""
    power = exp_minus(2 * np.abs(x))
    return np.sign(x) * ((ONE - power << bits) // (ONE + power))


def softplus(logits: Integers) -> Integers:
    """log(1 + e^l) at UNIT for logits at LOGIT: max(l, 0) + 2 artanh(s) with s = e^-|l| / (2 + e^-|l|)."""
    power = exp_minus(np.abs(logits))
    s = (power << UNIT) // (2 * ONE + power)
    square = s * s >> UNIT
    series = np.zeros_like(s)
    for k in range(LOG_TERMS, -1, -1):
        series = ONE // (2 * k + 1) + (square * series >> UNIT)
    return (np.maximum(logits, 0) << UNIT - LOGIT) + 2 * (s * series >> UNIT)


def rounded_shift(x: Integers, bits: int) -> Integers:
    """x / 2^bits to the nearest integer, halves upwards."""
    return x + (1 << bits >> 1) >> bits
