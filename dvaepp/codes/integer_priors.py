"""p(z) in whole numbers, to push and pop codes with: directed priors, and Boltzmann machines that are small enough.

A Boltzmann machine whose couplings leave a set of units independent given the others, S, is coded exactly where S is
small. The weight of each state s of S sums out the rest,

    log w(s) = b_S·s + s·W_SS s / 2 + Σ_j log(1 + e^(b_j + W_jS s)),   j outside S,

the units of S follow one by one from sums over the states that agree with the earlier ones, and the rest is
independent given S. Of an RBM, S is the smaller side. The table has 2^|S| entries, which bounds |S|; without it the
conditionals need the partition functions of what is left, and an estimate of those would not be the same twice.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from dvaepp.codes.ans import PRECISION, TOTAL, BitStack
from dvaepp.codes.integer_network import IntegerNetwork
from dvaepp.codes.integers import LOGIT, UNIT, Integers, exp_minus, frequencies, softplus
from dvaepp.errors import UsageError

MOST_ENUMERATED = 16  # units of S: 65 536 states
LARGEST_ENERGY = 1 << 62 - UNIT + LOGIT  # its log weights at UNIT then fit 64 bits
Bits = npt.NDArray[np.int64]


class IntegerPrior(ABC):
    """A distribution of codes (units,) that a stack can take and yield."""

    @abstractmethod
    def push(self, stack: BitStack, z: Bits) -> None:
        """Code z at its information content."""

    @abstractmethod
    def pop(self, stack: BitStack) -> Bits:
        """The inverse of `push`; from random bits a draw of the prior."""

    @abstractmethod
    def arrays(self) -> list[npt.NDArray[np.float64]]:
        """All numbers that it depends on, for a digest."""


class DirectedIntegers(IntegerPrior):
    """Groups in turn: `first_logits` of the first group at LOGIT, and a network for each later one."""

    def __init__(self, first_logits: Integers, networks: Sequence[IntegerNetwork]) -> None:
        self.first_logits, self.networks = first_logits, list(networks)
        self.first_ones = frequencies(first_logits).tolist()

    def push(self, stack: BitStack, z: Bits) -> None:
        starts = [0, *(network.layers[0].weight.shape[1] for network in self.networks)]
        stops = [*starts[1:], len(z)]
        for index in reversed(range(len(starts))):
            ones = self._ones(index, z[: starts[index]])
            stack.push(z[starts[index] : stops[index]].tolist(), ones)

    def pop(self, stack: BitStack) -> Bits:
        z = np.array(stack.pop(self.first_ones), np.int64)
        for index in range(1, len(self.networks) + 1):
            z = np.concatenate([z, np.array(stack.pop(self._ones(index, z)), np.int64)])
        return z

    def _ones(self, index: int, before: Bits) -> list[int]:
        return frequencies(self.networks[index - 1].logits(before)).tolist() if index else self.first_ones

    def arrays(self) -> list[npt.NDArray[np.float64]]:
        own = [self.first_logits.astype(np.float64)]
        return own + [array for network in self.networks for array in network.arrays()]


class BoltzmannIntegers(IntegerPrior):
    """A machine with biases (units,) and couplings (units, units) at LOGIT; `independent` are the units outside S."""

    def __init__(self, bias: Integers, matrix: Integers, independent: Sequence[int]) -> None:
        self.bias, self.matrix = bias, matrix
        self.rest = np.array(sorted(independent), np.int64)
        self.enumerated = np.setdiff1d(np.arange(len(bias)), self.rest)
        if len(self.enumerated) > MOST_ENUMERATED:
            raise UsageError(
                f"this Boltzmann prior cannot be coded exactly: {len(self.enumerated)} units must be enumerated, and "
                f"at most {MOST_ENUMERATED} can be; train a smaller machine or a directed prior (table2.marginal)"
            )
        if np.abs(bias).sum() + np.abs(matrix).sum() >= LARGEST_ENERGY:
            raise UsageError("the prior's weights are too large to be coded in whole numbers: train with a lower rate")
        self.sums = self._partial_sums(self._weights())

    def push(self, stack: BitStack, z: Bits) -> None:
        s = z[self.enumerated]
        stack.push(z[self.rest].tolist(), self._rest_ones(s))
        stack.push(s.tolist(), [self._one(s[:index]) for index in range(len(s))])

    def pop(self, stack: BitStack) -> Bits:
        s = np.empty(0, np.int64)
        for _ in self.enumerated:
            s = np.append(s, stack.pop([self._one(s)]))
        z = np.empty(len(self.bias), np.int64)
        z[self.enumerated] = s
        z[self.rest] = stack.pop(self._rest_ones(s))
        return z

    def arrays(self) -> list[npt.NDArray[np.float64]]:
        return [self.bias.astype(np.float64), self.matrix.astype(np.float64), self.rest.astype(np.float64)]

    def _rest_ones(self, s: Bits) -> list[int]:
        logits = self.bias[self.rest] + self.matrix[np.ix_(self.rest, self.enumerated)] @ s
        return frequencies(logits).tolist()

    def _one(self, before: Bits) -> int:
        """Slots of 1 for the next unit of S, from the sums over all states that begin with `before`."""
        zero, one = self.sums[len(before)][2 * _number(before) :][:2].tolist()
        return min(max(((one << PRECISION) + (zero + one) // 2) // (zero + one), 1), TOTAL - 1)

    def _weights(self) -> Integers:
        """w(s) of all states, at UNIT below the largest, and never zero."""
        count = len(self.enumerated)
        states = np.arange(1 << count, dtype=np.int64)[:, None] >> np.arange(count)[::-1] & 1
        couplings = self.matrix[np.ix_(self.enumerated, self.enumerated)]
        log_weights = states @ self.bias[self.enumerated] + ((states @ couplings) * states).sum(1) // 2
        log_weights = log_weights << UNIT - LOGIT
        for unit in self.rest:
            log_weights += softplus(self.bias[unit] + states @ self.matrix[unit, self.enumerated])
        return exp_minus(log_weights.max() - log_weights >> UNIT - LOGIT) + 1

    def _partial_sums(self, weights: Integers) -> list[Integers]:
        """For every depth the sums over states that share their first bits, (2^(depth + 1),)."""
        sums = [weights]
        for _ in range(len(self.enumerated) - 1):
            sums.insert(0, sums[0].reshape(-1, 2).sum(1))
        return sums


def _number(bits: Bits) -> int:
    return int("".join(map(str, bits.tolist())) or "0", 2)
