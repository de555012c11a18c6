"""Have the chains mixed? Rank-normalised split R-hat and bulk effective sample size (Vehtari et al. 2021).

Both start from x (records, chains): each chain is split into halves, so that a drift shows as a difference of chains,
and the values are replaced by normal scores z = Φ⁻¹((rank - 3/8) / (S + 1/4)) of their ranks among all S values, so
that neither heavy tails nor the units of x matter. With W the mean variance within the M half-chains of n records and
B/n the variance of their means, V = (n-1)/n W + B/n estimates the variance of z from both, and

    R-hat = sqrt(V / W),        effective sample size = n M / τ,    τ = 1 + 2 Σ_t ρ_t,
    ρ_t = 1 - (W - mean autocovariance at lag t) / V.

The sum stops where the noise of ρ_t begins (Geyer 1992): ρ_2k + ρ_2k+1 is positive and decreases in k for a reversible
chain. R-hat is the larger of those of x and of |x - median(x)|, which sees chains that differ in spread alone.
"""

import math

import torch
from torch import Tensor

MAX_R_HAT = 1.01  # the limits that Vehtari et al. recommend
MIN_EFFECTIVE_SAMPLES = 400.0


def split_r_hat(x: Tensor) -> float:
    """R-hat of samples (records, chains): near 1 when the halves of all chains look alike."""
    folded = (x - x.median()).abs()
    return max(_r_hat(_normal_scores(_halves(part))) for part in (x, folded))


def effective_sample_size(x: Tensor) -> float:
    """How many independent samples the bulk of (records, chains) is worth."""
    z = _normal_scores(_halves(x))
    n, chains = z.shape
    covariance = _autocovariance(z).mean(1)
    within = covariance[0] * n / (n - 1)
    total = _pooled_variance(z)
    if total == 0:  # a constant is known exactly
        return float(z.numel())
    rho = 1 - (within - covariance) / total
    rho[0] = 1.0
    pairs = rho[: n - n % 2].reshape(-1, 2).sum(1)
    negative = (pairs <= 0).nonzero()
    pairs = pairs[: int(negative[0])] if len(negative) else pairs
    tau = 2 * torch.cummin(pairs, 0).values.sum().item() - 1
    # Antithetic chains may be worth more than their number. The bound on τ keeps noise from making that infinite.
    return z.numel() / max(tau, 1 / math.log10(z.numel()))


def _halves(x: Tensor) -> Tensor:
    """Each chain split into halves, (records // 2, 2 chains); the middle record of an odd number is left out."""
    half = len(x) // 2
    return torch.cat([x[:half], x[len(x) - half :]], 1)


def _normal_scores(x: Tensor) -> Tensor:
    """Φ⁻¹ of the ranks among all values; equal values share their mean rank."""
    _, place, counts = torch.unique(x, return_inverse=True, return_counts=True)
    counts = counts.double()
    ranks = (counts.cumsum(0) - (counts - 1) / 2)[place]
    return torch.special.ndtri((ranks - 0.375) / (x.numel() + 0.25))


def _pooled_variance(z: Tensor) -> Tensor:
    """V = (n-1)/n W + B/n."""
    n = len(z)
    return z.var(0).mean() * (n - 1) / n + z.mean(0).var()


def _r_hat(z: Tensor) -> float:
    within, total = z.var(0).mean(), _pooled_variance(z)
    if within == 0:
        return 1.0 if total == 0 else math.inf
    return torch.sqrt(total / within).item()


def _autocovariance(z: Tensor) -> Tensor:
    """Σ_s (z_s - mean)(z_s+t - mean) / n for every lag t of every chain, by the Fourier transform."""
    n = len(z)
    spectrum = torch.fft.rfft(z - z.mean(0), 2 * n, dim=0)
    return torch.fft.irfft(spectrum.abs().square(), 2 * n, dim=0)[:n] / n
