"""A stack of bits that yields and takes binary symbols at their information content: range ANS (Duda 2013).

A symbol that owns `freq` of the 2^P slots, from slot `start` on, is pushed onto a state s by

    s -> (s // freq) · 2^P + s % freq + start,

which multiplies s by about 2^P / freq = 1 / probability; popping undoes it exactly. The state is kept in [2^32, 2^64):
32-bit words move between it and a list. Popping from random bits draws symbols with their probabilities, which is what
bits-back coding needs; where the list is empty, words of a fixed pseudo-random sequence are borrowed. A decoder ends
with these very words, so that any damage on the way is noticed.

`constriction` codes a symbol about six times as fast, but its Python interface takes probabilities in floating point
and rounds them by rules of its own; here they are whole numbers, which the format of an archive needs. The tests
compare the two.
"""

import math
from collections.abc import Sequence

PRECISION = 20  # P: probabilities are multiples of 2^-20
TOTAL = 1 << PRECISION
MASK = TOTAL - 1
WORD = 32
LOW = 1 << WORD  # the least state
WORD_MASK = LOW - 1


class Exhausted(ValueError):
    """A decoder ran out of words: what it decodes was not made by this encoder and this model."""


class BitStack:
    """Binary symbols, last in first out. `ones` are the slots of symbol 1, from 1 to 2^P - 1, one per symbol.

    >>> stack = BitStack(); stack.push([1, 0], [900_000, 10_000]); stack.pop([900_000, 10_000])
    [1, 0]
    """

    def __init__(self, state: int = LOW, words: Sequence[int] = (), *, lend: bool = True) -> None:
        self.state, self.words, self.borrowed = state, list(words), 0
        self._lend = lend

    @property
    def bits(self) -> float:
        """The information pushed so far, less what was popped."""
        return WORD * (len(self.words) - self.borrowed) + math.log2(self.state) - WORD

    def push(self, symbols: Sequence[int], ones: Sequence[int]) -> None:
        """Add symbols, the last one first, so that `pop` returns them in order."""
        state, words = self.state, self.words
        for symbol, one in zip(reversed(symbols), reversed(ones), strict=True):
            freq, start = (one, 0) if symbol else (TOTAL - one, one)
            if state >= freq << (2 * WORD - PRECISION):
                words.append(state & WORD_MASK)
                state >>= WORD
            quotient, rest = divmod(state, freq)
            state = (quotient << PRECISION) + rest + start
        self.state = state

    def pop(self, ones: Sequence[int]) -> list[int]:
        """Take as many symbols as there are frequencies."""
        state, words, symbols = self.state, self.words, []
        for one in ones:
            slot = state & MASK
            if slot < one:
                symbols.append(1)
                state = one * (state >> PRECISION) + slot
            else:
                symbols.append(0)
                state = (TOTAL - one) * (state >> PRECISION) + slot - one
            if state < LOW:
                state = state << WORD | (words.pop() if words else self._borrow())
        self.state = state
        return symbols

    def is_back_at_start(self) -> bool:
        """Whether only borrowed words are left: everything that was pushed has been popped."""
        owed = [borrowed_word(i) for i in range(len(self.words))]
        return self.state == LOW and self.words == owed[::-1]

    def _borrow(self) -> int:
        if not self._lend:
            raise Exhausted("it ends before its last image")
        self.borrowed += 1
        return borrowed_word(self.borrowed - 1)


def borrowed_word(index: int) -> int:
    """The words of a fixed pseudo-random sequence (splitmix64, Steele et al. 2014)."""
    z = (index + 1) * 0x9E3779B97F4A7C15 & 0xFFFFFFFFFFFFFFFF
    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9 & 0xFFFFFFFFFFFFFFFF
    z = (z ^ z >> 27) * 0x94D049BB133111EB & 0xFFFFFFFFFFFFFFFF
    return (z ^ z >> 31) >> WORD
