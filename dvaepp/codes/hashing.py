"""Linear hashes of real vectors to bits, the baselines that a learned code stands beside at equal length.

    bit_i(x) = 1[w_i · (x - mean) > 0]

They differ in the directions w: random ones (locality-sensitive hashing, Charikar 2002), the principal ones, or the
principal ones turned so that the signs lose least (iterative quantisation, Gong & Lazebnik 2011).
"""

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from dvaepp.errors import UsageError

Floats = npt.NDArray[np.float64]


class LinearHash(NamedTuple):
    """x -> bits, with directions (features, bits)."""

    mean: Floats
    directions: Floats

    def __call__(self, x: Floats) -> npt.NDArray[np.bool_]:
        return (x - self.mean) @ self.directions > 0


def random_hyperplanes(x: Floats, num_bits: int, seed: int = 0) -> LinearHash:
    """Directions drawn from a normal: two vectors differ in a bit with probability angle / π. Nothing is learned."""
    normals = np.random.default_rng(seed).standard_normal((x.shape[1], num_bits))
    return LinearHash(x.mean(0), normals)


def pca_sign(x: Floats, num_bits: int) -> LinearHash:
    """The signs of the leading principal components of x (n, features)."""
    if num_bits > x.shape[1]:
        raise UsageError(f"data of {x.shape[1]} features has no {num_bits} principal components; use fewer bits")
    mean = x.mean(0)
    centered = x - mean
    _, vectors = np.linalg.eigh(centered.T @ centered)
    return LinearHash(mean, vectors[:, ::-1][:, :num_bits])


def itq(x: Floats, num_bits: int, iterations: int = 50, seed: int = 0) -> LinearHash:
    """PCA, then the rotation R that brings the components V closest to their signs B: min ||B - V R||.

    B = sign(V R) for a given R, and R = U Wᵀ with VᵀB = U S Wᵀ for a given B (Procrustes), in turns.
    """
    mean, components = pca_sign(x, num_bits)
    projected = (x - mean) @ components
    rotation, _ = np.linalg.qr(np.random.default_rng(seed).standard_normal((num_bits, num_bits)))
    for _ in range(iterations):
        signs = np.where(projected @ rotation > 0, 1.0, -1.0)
        left, _, right = np.linalg.svd(projected.T @ signs)
        rotation = left @ right
    return LinearHash(mean, components @ rotation)
