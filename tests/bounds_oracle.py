"""Bounds of small models from their joint distributions: sums over every z, quadrature over ζ. Numpy only, no dvaepp.

Nothing here knows a closed-form KL, a conditional mean of z, or a reparameterised sample. The model's
logits are stated through the module `xp`, numpy or torch, so that a test can draw from the same functions.
"""

import itertools
import math
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np

from tests.enumeration import Array, energy, log_partition, states

Truth = Callable[[Array], Array]


def with_gradient(function: Truth, parameters: Array, step: float = 1e-4) -> Array:
    """Row 0: the function's values; then one row per parameter, the central differences."""
    rows = [function(parameters)]
    for shift in step * np.eye(len(parameters)):
        rows.append((function(parameters + shift) - function(parameters - shift)) / (2 * step))
    return np.array(rows)


def unit_interval(nodes: int) -> tuple[Array, Array]:
    """Gauss-Legendre points and weights on [0, 1]."""
    points, weights = np.polynomial.legendre.leggauss(nodes)
    return (points + 1) / 2, weights / 2


def log_bernoulli(value: Any, logits: Array) -> Array:
    """log of a Bernoulli probability at value in {0, 1}, from its definition."""
    p = 1 / (1 + np.exp(-logits))
    return np.log(np.where(value == 1, p, 1 - p))


# A directed model with 2 + 2 bits and 3 binary pixels (Sec. 4), exponential smoothing.

RNG = np.random.default_rng(5)
PIXELS = np.array([1.0, 0.0, 1.0])
MODEL_BETA = 4.0
SHAPES = {
    "posterior_bias": (4,),
    "posterior_slope": (2, 2),
    "prior_bias": (4,),
    "prior_slope": (2, 2),
    "decoder_bias": (3,),
    "decoder_slope": (4, 3),
}
MODEL_PARAMETERS = RNG.normal(scale=1.2, size=sum(math.prod(s) for s in SHAPES.values()))
BEND = RNG.normal(scale=1.5, size=(4, 3))


def named(flat: Any) -> dict[str, Any]:
    """The flat vector of parameters, array or tensor, as named pieces."""
    pieces, start = {}, 0
    for name, shape in SHAPES.items():
        stop = start + math.prod(shape)
        pieces[name], start = flat[start:stop].reshape(shape), stop
    return pieces


def part(prefix: str) -> slice:
    """The rows of `with_gradient` that belong to "posterior", "prior" or "decoder"."""
    rows, start = [], 1
    for name, shape in SHAPES.items():
        stop = start + math.prod(shape)
        rows += [start, stop] if name.startswith(prefix) else []
        start = stop
    return slice(min(rows), max(rows))


def second_logits(xp: ModuleType, bias: Any, slope: Any, zeta1: Any) -> Any:
    """Logits of group 2 as a smooth function of ζ₁, for posterior and prior alike."""
    return bias[2:] + zeta1 @ slope + xp.tanh(zeta1 @ xp.asarray(BEND[:2, :2]))


def pixel_logits(xp: ModuleType, p: dict[str, Any], zeta: Any) -> Any:
    return p["decoder_bias"] + zeta @ p["decoder_slope"] + xp.sin(zeta @ xp.asarray(BEND))


class Bounds(NamedTuple):
    """Everything in nats: E[log p(x|ζ)] - KL for both KLs, the KLs, and log p(x)."""

    joint_elbo: float
    marginal_elbo: float
    joint_kl: float
    marginal_kl: float
    log_evidence: float


def bounds(flat: Array, nodes: int = 10) -> Bounds:
    """Eq. 4, Eq. 5 and log p(x) from the densities over all (z, ζ)."""
    p = named(flat)
    points, weights = unit_interval(nodes)
    zeta = np.array(list(itertools.product(points, repeat=4)))
    weight = np.array([math.prod(w) for w in itertools.product(weights, repeat=4)])
    ones = np.ones((len(zeta), 2))
    zeta1 = zeta[:, :2]
    q_logits, p_logits = (
        np.concatenate(
            [p[f"{side}_bias"][:2] * ones, second_logits(np, p[f"{side}_bias"], p[f"{side}_slope"], zeta1)], 1
        )
        for side in ("posterior", "prior")
    )
    log_x = log_bernoulli(PIXELS, pixel_logits(np, p, zeta)).sum(1)
    norm = (1 - math.exp(-MODEL_BETA)) / MODEL_BETA
    joint_kl = 0.0
    q_zeta, p_zeta = np.zeros(len(zeta)), np.zeros(len(zeta))
    for z in states(4):
        r = np.prod(np.exp(-MODEL_BETA * np.abs(zeta - z)) / norm, 1)
        log_q, log_p = log_bernoulli(z, q_logits).sum(1), log_bernoulli(z, p_logits).sum(1)
        joint_kl += float((weight * r * np.exp(log_q) * (log_q - log_p)).sum())
        q_zeta += r * np.exp(log_q)
        p_zeta += r * np.exp(log_p)
    assert abs((weight * q_zeta).sum() - 1) < 1e-8, "the quadrature is too coarse"
    fit = float((weight * q_zeta * log_x).sum())
    marginal_kl = float((weight * q_zeta * np.log(q_zeta / p_zeta)).sum())
    evidence = math.log((weight * p_zeta * np.exp(log_x)).sum())
    return Bounds(fit - joint_kl, fit - marginal_kl, joint_kl, marginal_kl, evidence)


# Spike-and-exponential smoothing and a Boltzmann prior (Rolfe).


def spike_kl(
    bias: Array, coupling: Array, sizes: Sequence[int], logits: Callable[[int, Array], Array], beta: float, nodes: int
) -> float:
    """KL(q(z, ζ|x) || p(z, ζ)) for a posterior in groups, from the joint itself.

        KL = Σ_z ∫ dζ  Π_a q(z_a | x, ζ_<a) r(ζ_a|z_a)  [Σ_a log q(z_a | x, ζ_<a) - log p(z)]

    r(ζ|0) is an atom at 0, so ζ_i = 0 where z_i = 0; r(ζ|1) = β e^(βζ) / (e^β - 1) is integrated by Gauss-Legendre.
    r cancels in the logarithm, and ζ of the last group integrates to one.
    """
    depth = sum(sizes[:-1])
    points, weights = unit_interval(nodes)
    weights = weights * beta * np.exp(beta * points) / math.expm1(beta)
    starts = [sum(sizes[:a]) for a in range(len(sizes))]
    log_z = log_partition(bias, coupling)
    total = mass = 0.0
    for z in states(len(bias)):
        axes = [(points, weights) if z_i else (np.zeros(1), np.ones(1)) for z_i in z[:depth]]
        zeta = np.array(list(itertools.product(*(x for x, _ in axes)))).reshape(-1, depth)
        weight = np.array([math.prod(w) for w in itertools.product(*(w for _, w in axes))])
        every = [np.broadcast_to(logits(a, zeta[:, :s]), (len(zeta), sizes[a])) for a, s in enumerate(starts)]
        log_q = log_bernoulli(z, np.concatenate(every, 1)).sum(1)
        q = weight * np.exp(log_q)
        mass += q.sum()
        total += float((q * (log_q + energy(z, bias, coupling) + log_z)).sum())
    assert abs(mass - 1) < 1e-9, f"the quadrature is too coarse: q has mass {mass}"
    return total
