"""Boltzmann machines small enough to enumerate: loops over all states in float64. Nothing here imports dvaepp.

A machine is a bias vector b and a symmetric coupling matrix W with zero diagonal:

    p(z) = e^(-E(z)) / Z,   E(z) = -Σ_i b_i z_i - Σ_{i<j} W_ij z_i z_j,   z in {0, 1}^units
"""

import itertools
import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]


class Moments(NamedTuple):
    """E[z_i] and E[z_i z_j] under p."""

    first: Array
    second: Array


def states(num_units: int) -> Array:
    """All 2^units states in the order of binary counting."""
    return np.array(list(itertools.product([0.0, 1.0], repeat=num_units)))


def energy(z: Sequence[float] | Array, bias: Array, coupling: Array) -> float:
    """E(z) term by term."""
    on = [i for i, value in enumerate(z) if value == 1]
    return -sum(float(bias[i]) for i in on) - sum(float(coupling[i, j]) for i in on for j in on if i < j)


def energies(bias: Array, coupling: Array) -> Array:
    """E of every state, in the order of `states`."""
    assert np.array_equal(coupling, coupling.T) and not coupling.diagonal().any()
    return np.array([energy(z, bias, coupling) for z in states(len(bias))])


def log_sum_exp(values: Sequence[float] | Array) -> float:
    top = max(values)
    return float(top + math.log(math.fsum(math.exp(v - top) for v in values)))


def log_partition(bias: Array, coupling: Array) -> float:
    """log Z."""
    return log_sum_exp(-energies(bias, coupling))


def probabilities(bias: Array, coupling: Array) -> Array:
    """p of every state, in the order of `states`."""
    return np.exp(-energies(bias, coupling) - log_partition(bias, coupling))


def moments(bias: Array, coupling: Array) -> Moments:
    """The marginals E[z_i] and E[z_i z_j]: also the derivatives of log Z with respect to b_i and W_ij."""
    first, second = np.zeros_like(bias), np.zeros_like(coupling)
    for z, p in zip(states(len(bias)), probabilities(bias, coupling), strict=True):
        first += p * z
        second += p * np.outer(z, z)
    return Moments(first, second)


def conditional_logit(z: Array, unit: int, bias: Array, coupling: Array) -> float:
    """log p(z_unit = 1, rest) - log p(z_unit = 0, rest)."""
    off, on = z.copy(), z.copy()
    off[unit], on[unit] = 0, 1
    return energy(off, bias, coupling) - energy(on, bias, coupling)


def free_energy(z: Array, summed: Sequence[int], bias: Array, coupling: Array) -> float:
    """-log Σ e^(-E(z)) over every value of the units `summed`."""
    terms = []
    for values in itertools.product([0.0, 1.0], repeat=len(summed)):
        state = z.copy()
        state[list(summed)] = values
        terms.append(-energy(state, bias, coupling))
    return -log_sum_exp(terms)


def grouped_kl(
    bias: Array, coupling: Array, sizes: Sequence[int], logits: Callable[[int, Array], Array], beta: float, nodes: int
) -> float:
    """KL(q(z, ζ|x) || p(z, ζ)) for a posterior in groups and exponential smoothing, from the joint itself.

        q(z, ζ|x) = Π_a q(z_a | x, ζ_<a) r(ζ_a|z_a),   p(z, ζ) = p(z) Π_a r(ζ_a|z_a)
        KL = Σ_z ∫ dζ_<G  Π_a q(z_a | x, ζ_<a)  Π_{a<G} r(ζ_a|z_a)  [Σ_a log q(z_a | x, ζ_<a) - log p(z)]

    r cancels in the logarithm, and ζ of the last group G integrates to one. `logits(a, earlier)` gives those of group a
    for rows of earlier ζ. The integral is a Gauss-Legendre product rule; no conditional mean of z is ever formed.
    """
    depth = sum(sizes[:-1])
    points, weights = np.polynomial.legendre.leggauss(nodes)
    points, weights = (points + 1) / 2, weights / 2
    zeta = np.array(list(itertools.product(points, repeat=depth))).reshape(-1, depth)
    weight = np.array([math.prod(w) for w in itertools.product(weights, repeat=depth)])
    starts = [sum(sizes[:a]) for a in range(len(sizes))]
    all_logits = np.concatenate([logits(a, zeta[:, :start]) for a, start in enumerate(starts)], 1)
    norm = (1 - math.exp(-beta)) / beta
    total = mass = 0.0
    log_z = log_partition(bias, coupling)
    for z in states(len(bias)):
        log_q = -np.log1p(np.exp(-(2 * z - 1) * all_logits)).sum(1)
        smooth = np.prod(np.exp(-beta * np.abs(zeta - z[:depth])) / norm, 1)
        q = weight * smooth * np.exp(log_q)
        mass += q.sum()
        total += (q * (log_q + energy(z, bias, coupling) + log_z)).sum()
    assert abs(mass - 1) < 1e-9, f"the quadrature is too coarse: q has mass {mass}"
    return float(total)
