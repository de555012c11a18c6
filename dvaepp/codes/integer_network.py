"""Dense networks in whole numbers: the same logits whatever the machine, its threads, kernels and batches.

Weights are rounded to multiples of 2^-20 and hidden activations to multiples of 2^-16; what goes in is 0 or 1 already.
Products are then sums of integers. They are computed in float64 by whatever library NumPy has, and are exact in any
order and with any fused operation, because every partial sum stays below 2^53; weights for which it might not are
refused when a network is made.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from dvaepp.codes.integers import LOGIT, Integers, rounded_shift, tanh
from dvaepp.errors import UsageError

Floats = npt.NDArray[np.float64]

WEIGHT = LOGIT  # fractional bits of weights: the first layer's outputs are then at LOGIT
HIDDEN = 16  # fractional bits of hidden activations
EXACT = 2**53  # integers up to here are exact in float64


class IntegerLayer(NamedTuple):
    """Integer weights (outputs, inputs) and bias (outputs,), in float64."""

    weight: Floats
    bias: Floats


class IntegerNetwork:
    """Affine maps with tanh between them, on inputs of 0 and 1."""

    def __init__(self, maps: Sequence[tuple[Integers, Integers]]) -> None:
        """`maps`: weights and biases as integers with WEIGHT fractional bits."""
        self.layers = [_layer(weight, bias, first=index == 0) for index, (weight, bias) in enumerate(maps)]

    def logits(self, bits: npt.NDArray[Any]) -> Integers:
        """Outputs at LOGIT for bits (..., inputs)."""
        first, *others = self.layers
        found = (np.asarray(bits, np.float64) @ first.weight.T + first.bias).astype(np.int64)
        for weight, bias in others:
            activation = tanh(found, HIDDEN).astype(np.float64)
            found = rounded_shift((activation @ weight.T + bias).astype(np.int64), HIDDEN)
        return found

    def arrays(self) -> list[Floats]:
        """All numbers that the outputs depend on, for a digest."""
        return [array for layer in self.layers for array in layer]


def quantized(values: npt.ArrayLike) -> Integers:
    """Real numbers as integers with WEIGHT fractional bits."""
    array = np.asarray(values, np.float64)
    if not np.isfinite(array).all() or np.abs(array).max(initial=0) >= 2**20:
        raise UsageError("weights must be finite and below 2^20 to be coded in whole numbers: train with a lower rate")
    return np.rint(array * (1 << WEIGHT)).astype(np.int64)


def _layer(weight: Integers, bias: Integers, first: bool) -> IntegerLayer:
    """Weights and bias at the scale of the layer's output, if no sum can leave the exact integers."""
    largest_input = 1 if first else 1 << HIDDEN
    scaled = bias * largest_input
    if (np.abs(weight).sum(1) * largest_input + np.abs(scaled)).max() >= EXACT:
        raise UsageError("weights are too large to be coded in whole numbers: a sum may pass 2^53")
    return IntegerLayer(weight.astype(np.float64), scaled.astype(np.float64))
