"""Relaxed Boltzmann priors small enough to enumerate, in numpy. Nothing here imports dvaepp."""

import itertools
import math
from typing import Any

import numpy as np
from scipy.stats import logistic, multivariate_normal, norm

from tests.enumeration import Array, energies, log_partition, log_sum_exp, states


def log_density0(name: str, sharpness: float, zeta: Array) -> Array:
    """log r(ζ|0) of a smoothing by its definition; `sharpness` is β, or the scale on the real line."""
    if name == "exponential":
        return -sharpness * zeta + math.log(sharpness / -math.expm1(-sharpness))
    if name == "power_law":
        return (1 / sharpness - 1) * np.log(zeta) - math.log(sharpness)
    if name == "uniform_exponential":
        floor = 0.05
        return np.log(floor + (1 - floor) * sharpness * np.exp(-sharpness * zeta) / -math.expm1(-sharpness))
    return {"gaussian": norm, "logistic": logistic}[name].logpdf(zeta, 0, sharpness)


def log_ratio(name: str, sharpness: float, zeta: Array) -> Array:
    """b = log r(ζ|1) - log r(ζ|0)."""
    return log_density0(name, sharpness, 1 - zeta) - log_density0(name, sharpness, zeta)


def log_prior(bias: Array, coupling: Array, zeta: Array, name: str, sharpness: float) -> float:
    """log Σ_z p(z) Π r(ζ_i|z_i) by enumeration."""
    zero, one = log_density0(name, sharpness, zeta), log_density0(name, sharpness, 1 - zeta)
    terms = [
        -energy + float(np.where(z == 1, one, zero).sum())
        for z, energy in zip(states(len(bias)), energies(bias, coupling), strict=True)
    ]
    return log_sum_exp(terms) - log_partition(bias, coupling)


def gaussian_integral(bias: Array, coupling: Array, zeta: Array, beta: float) -> float:
    """log Σ_z p(z) N(ζ | z, (W + β I)⁻¹) by enumeration."""
    covariance = np.linalg.inv(coupling + beta * np.eye(len(bias)))
    terms = [
        -energy + multivariate_normal.logpdf(zeta, z, covariance)
        for z, energy in zip(states(len(bias)), energies(bias, coupling), strict=True)
    ]
    return log_sum_exp(terms) - log_partition(bias, coupling)


def mean_field(bias: Array, coupling: Array, b: Array, sweeps: int = 10_000) -> float:
    """The converged bound b·m - E(m) + H(m): one unit after the other, until nothing moves."""
    m = 1 / (1 + np.exp(-(bias + b)))
    for _ in range(sweeps):
        before = m.copy()
        for i in range(len(m)):
            m[i] = 1 / (1 + math.exp(-(bias[i] + b[i] + coupling[i] @ m)))
        if np.abs(m - before).max() < 1e-15:
            break
    entropy = -sum(p * math.log(p) for value in m for p in (value, 1 - value) if p > 0)
    return float((bias + b) @ m + m @ coupling @ m / 2 + entropy)


# An importance-weighted bound with an RBM of one unit on each side, two groups of one unit, and three pixels.

PIXELS = np.array([1.0, 0.0, 1.0])
BETA = 5.0
PARAMETERS = np.random.default_rng(9).normal(scale=1.1, size=15)
"""Posterior bias 2 and slope 1, prior biases 2 and coupling 1, decoder biases 3 and slopes 2 x 3."""


def log_weights(xp: Any, p: Any, zeta: Any, prior_term: Any) -> tuple[Any, Any]:
    """log p(x|ζ) with the term of the prior, and the posterior's logits, for rows of ζ (rows, 2); numpy or torch."""
    logits = xp.stack([p[0] + 0 * zeta[:, 0], p[1] + 2 * xp.tanh(p[2] * zeta[:, 0])], 1)
    pixels = p[6:9] + zeta @ p[9:15].reshape(2, 3) + xp.sin(3 * zeta @ p[9:15].reshape(2, 3))
    sign = xp.asarray(2 * PIXELS - 1)
    return -xp.log1p(xp.exp(-sign * pixels)).sum(1) + prior_term, logits


def k_sample_bound(p: Array, k: int, nodes: int = 20, *, exact_prior: bool = False) -> float:
    """E[log mean w] with K = k by Gauss-Legendre over all ζ of all samples; the prior by mean field, or exactly."""
    points, weights = np.polynomial.legendre.leggauss(nodes)
    points, weights = (points + 1) / 2, weights / 2
    zeta = np.array(list(itertools.product(points, repeat=2)))
    weight = np.array([math.prod(w) for w in itertools.product(weights, repeat=2)])
    coupling = np.array([[0, p[5]], [p[5], 0]])
    log_z = log_partition(p[3:5], coupling)
    if exact_prior:
        prior = np.array([log_prior(p[3:5], coupling, row, "exponential", BETA) for row in zeta])
    else:
        floor = log_density0("exponential", BETA, zeta).sum(1)
        b = log_ratio("exponential", BETA, zeta)
        prior = np.array([mean_field(p[3:5], coupling, row) for row in b]) + floor - log_z
    log_p, logits = log_weights(np, p, zeta, prior)
    zero, one = log_density0("exponential", BETA, zeta), log_density0("exponential", BETA, 1 - zeta)
    log_q = np.log((np.exp(zero) + np.exp(one + logits)) / (1 + np.exp(logits))).sum(1)
    q, w = weight * np.exp(log_q), np.exp(log_p - log_q)
    assert abs(q.sum() - 1) < 1e-7, "the quadrature is too coarse"
    if k == 0:  # log p(x) itself
        return math.log((q * w).sum())
    total, mass = w, q
    for _ in range(k - 1):
        total, mass = np.add.outer(total, w).ravel(), np.multiply.outer(mass, q).ravel()
    return float((mass * np.log(total / k)).sum())
