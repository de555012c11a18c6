"""Exact distributions of small machines and the chi-squared test that samplers must pass. Imports nothing of dvaepp."""

import itertools

import numpy as np
import torch
from scipy.stats import chi2

P_VALUE = 1e-6  # issue of a correct sampler: one failure in a million, with fixed seeds never


def all_states(units: int) -> np.ndarray:
    return np.array(list(itertools.product((0.0, 1.0), repeat=units)))


def probabilities(log_weights: np.ndarray) -> np.ndarray:
    weights = np.exp(log_weights - log_weights.max())
    return weights / weights.sum()


def log_weights(bias: np.ndarray, matrix: np.ndarray) -> np.ndarray:
    """-E of every state for biases and symmetric couplings with zero diagonal."""
    states = all_states(len(bias))
    return states @ bias + 0.5 * np.einsum("si,ij,sj->s", states, matrix, states)


def draw(p: np.ndarray, count: int, seed: int) -> torch.Tensor:
    """Exact samples as chains."""
    units = int(np.log2(len(p)))
    chosen = np.random.default_rng(seed).choice(len(p), size=count, p=p)
    return torch.tensor(all_states(units)[chosen], dtype=torch.float32)


def p_value(z: torch.Tensor, p: np.ndarray) -> float:
    """Chi-squared p-value of chains (chains, units) against p over all states, rare states pooled."""
    powers = 2 ** np.arange(z.shape[1])[::-1]
    counts = np.bincount((z.numpy() @ powers).astype(int), minlength=len(p))
    expected = p * len(z)
    order = np.argsort(expected)
    cumulative = np.cumsum(expected[order])
    pooled = order[cumulative < 20]
    kept = order[len(pooled) :]
    observed = np.append(counts[kept], counts[pooled].sum())
    wanted = np.append(expected[kept], expected[pooled].sum())
    if wanted[-1] < 5:  # too rare to count alone
        observed, wanted = observed[:-1], wanted[:-1] * (observed[:-1].sum() / wanted[:-1].sum())
    statistic = ((observed - wanted) ** 2 / wanted).sum()
    return float(chi2.sf(statistic, len(wanted) - 1))
