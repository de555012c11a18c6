"""Bits-back coding of binary images with a model of binary latents (Frey & Hinton 1997; Townsend et al. 2019).

For an image x the encoder takes a code z out of what is on the stack already, as if those bits were random, and puts x
and z back:

    pop z_a by q(z_a|x, z_<a),   push x by p(x|z),   push z by p(z).

The net length is log q(z|x) - log p(x|z) - log p(z), whose mean over z is the negative ELBO in the binary limit: the
code z is paid for and refunded. The decoder runs the three steps backwards, and so gets the earlier bits back. Binary
latents need no discretisation, and the chain needs borrowed bits for its first image only.
"""

import hashlib
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from dvaepp.codes.ans import BitStack
from dvaepp.codes.integer_network import IntegerNetwork
from dvaepp.codes.integer_priors import IntegerPrior
from dvaepp.codes.integers import frequencies

Pixels = npt.NDArray[np.uint8]
Bits = npt.NDArray[np.int64]


class IntegerModel(NamedTuple):
    """q(z_a|x, z_<a), p(z) and p(x|z) in whole numbers, for images of `image_shape`."""

    encoders: list[IntegerNetwork]
    prior: IntegerPrior
    decoder: IntegerNetwork
    image_shape: tuple[int, ...]

    def digest(self) -> bytes:
        """What two models must share to read each other's archives: every integer of theirs."""
        found = hashlib.sha256(repr(self.image_shape).encode())
        networks = [*self.encoders, self.decoder]
        for array in [each for network in networks for each in network.arrays()] + self.prior.arrays():
            found.update(repr(array.shape).encode())
            found.update(np.ascontiguousarray(array, "<f8").tobytes())
        return found.digest()


def push_image(stack: BitStack, model: IntegerModel, x: Bits) -> None:
    """Code an image (pixels,) of 0 and 1."""
    z = np.empty(0, np.int64)
    for encoder in model.encoders:
        z = np.concatenate([z, np.array(stack.pop(_ones(encoder, x, z)), np.int64)])
    stack.push(x.tolist(), _ones(model.decoder, z))
    model.prior.push(stack, z)


def pop_image(stack: BitStack, model: IntegerModel) -> Bits:
    """The inverse of `push_image`."""
    z = model.prior.pop(stack)
    x = np.array(stack.pop(_ones(model.decoder, z)), np.int64)
    for encoder in reversed(model.encoders):
        units = len(encoder.layers[-1].bias)
        before, group = z[:-units], z[-units:]
        stack.push(group.tolist(), _ones(encoder, x, before))
        z = before
    return x


def _ones(network: IntegerNetwork, *bits: Bits) -> list[int]:
    return frequencies(network.logits(np.concatenate(bits))).tolist()
