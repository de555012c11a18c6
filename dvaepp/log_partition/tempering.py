"""log Z by parallel tempering (App. G) and Bennett's acceptance ratio between neighbouring temperatures.

With samples x of D at β_t and y at β_{t+1}, Δ = β_{t+1} - β_t, the difference r = log Z_{t+1} - log Z_t solves

    mean σ(Δ x - r) = mean σ(r - Δ y)                                          (Bennett 1976)

and log Z = Σ h(c) + Σ_t r_t with h(c) = log(1 + e^c) of the independent units at β = 0. The replicas are independent,
so the error bar is taken over them: to first order replica m moves r_t by its share of the equation divided by the
slope, summed over t before the variance is taken. That counts autocorrelation and what neighbours have in common.
"""

import math
from typing import Any

import numpy as np
import torch
from torch import Tensor

from dvaepp.errors import UsageError
from dvaepp.log_partition.result import LogPartition
from dvaepp.priors.base import BoltzmannPrior
from dvaepp.progress import progress
from dvaepp.samplers.blocks import base_from_pilot
from dvaepp.samplers.noise import Noise
from dvaepp.samplers.tempering import Tempering, adapt_ladder

MAX_RECORDS = 2000  # per chain; longer runs are thinned


def default_sweeps(num_units: int) -> int:
    """A budget that suits the size: a trained machine mixes more slowly the larger it is. The paper makes 100 000."""
    return min(20_000, 1000 + 20 * num_units)


@torch.no_grad()
def tempering(
    prior: BoltzmannPrior,
    generator: torch.Generator | None = None,
    *,
    num_sweeps: int | None = None,
    num_replicas: int = 32,
    target_swap_rate: float = 0.6,
    show_progress: bool | None = None,
) -> LogPartition:
    """Estimate log Z with an adapted ladder; a fifth of `num_sweeps` is made on top, to forget the start."""
    num_sweeps = default_sweeps(prior.num_units) if num_sweeps is None else num_sweeps
    if num_sweeps < 10 or num_replicas < 4:
        raise UsageError(f"tempering needs num_sweeps >= 10 and num_replicas >= 4, got {num_sweeps} and {num_replicas}")
    prior.check()
    noise = Noise(generator, prior.couplings().bias.device)
    base = base_from_pilot(prior, noise)
    adapted = adapt_ladder(prior, base, noise, target_swap_rate=target_swap_rate)
    run = Tempering(prior, adapted.ladder, num_replicas, base, noise)
    burn_in, thin = num_sweeps // 5, max(1, num_sweeps // MAX_RECORDS)
    records = []
    with progress(f"log Z by tempering, {run.num_levels} temperatures", burn_in + num_sweeps, show_progress) as advance:
        for sweep in range(-burn_in, num_sweeps):
            gap = run.sweep()
            if sweep >= 0 and sweep % thin == 0:
                records.append(gap)
            advance(1)
    gaps = torch.from_numpy(np.stack(records))  # (records, replicas, levels)
    value, standard_error = bennett(gaps, torch.from_numpy(run.ladder))
    return LogPartition(
        run.engine.log_base_z() + value, standard_error, "tempering", _diagnostics(gaps, run, num_sweeps)
    )


def bennett(gaps: Tensor, ladder: Tensor) -> tuple[float, float]:
    """Σ_t r_t and its standard error from D samples (records, replicas, levels)."""
    delta = ladder.diff()
    below, above = gaps[..., :-1] * delta, gaps[..., 1:] * delta
    r = (below.mean((0, 1)) + above.mean((0, 1))) / 2  # thermodynamic integration starts Newton nearby
    low, high = (
        torch.minimum(below.amin((0, 1)), above.amin((0, 1))),
        torch.maximum(below.amax((0, 1)), above.amax((0, 1))),
    )
    for _ in range(100):
        up, down = torch.sigmoid(below - r), torch.sigmoid(r - above)
        share = (up - down).mean(0)  # (replicas, pairs)
        excess = share.mean(0)  # decreasing in r
        low, high = torch.where(excess > 0, r, low), torch.where(excess > 0, high, r)
        slope = (up * (1 - up) + down * (1 - down)).mean((0, 1))
        newton = r + excess / slope
        step = torch.where((newton > low) & (newton < high), newton, (low + high) / 2)
        done = bool(((step - r).abs() < 1e-11 * (1 + r.abs())).all())
        r = step
        if done:
            break
    influence = (share / slope).sum(-1)
    standard_error = influence.std() / math.sqrt(len(influence))
    return r.sum().item(), standard_error.item()


def _diagnostics(gaps: Tensor, run: Tempering, num_sweeps: int) -> dict[str, Any]:
    r_hats = [split_r_hat(gaps[..., level]) for level in range(gaps.shape[-1])]
    ess = effective_sample_size(gaps[..., -1])
    swap_rates = run.swap_rates()
    warnings = []
    if max(r_hats) > 1.1:
        warnings.append(f"chains have not mixed: R-hat {max(r_hats):.2f} > 1.1; raise num_sweeps")
    if min(swap_rates) < 0.1:
        warnings.append(f"neighbouring temperatures hardly swap: rate {min(swap_rates):.2f}")
    if run.round_trips < run.num_replicas:
        warnings.append(f"only {run.round_trips} round trips between β = 0 and 1; raise num_sweeps")
    return {
        "ladder": run.ladder.tolist(),
        "swap_rates": swap_rates,
        "effective_sample_size": ess,
        "r_hat": max(r_hats),
        "round_trips": run.round_trips,
        "num_replicas": run.num_replicas,
        "num_sweeps": num_sweeps,
        "warnings": warnings,
    }


def split_r_hat(x: Tensor) -> float:
    """Gelman and Rubin's R-hat of samples (records, chains), each chain split into halves."""
    half = len(x) // 2
    chains = torch.cat([x[:half], x[half : 2 * half]], 1)
    within = chains.var(0).mean()
    between = half * chains.mean(0).var()
    if within == 0:
        return 1.0 if between == 0 else math.inf
    return torch.sqrt((half - 1) / half + between / (half * within)).item()


def effective_sample_size(x: Tensor) -> float:
    """How many independent samples the mean of (records, chains) is worth, from the spread of the chains' means."""
    spread = x.mean(0).var()
    if spread == 0:
        return float(x.numel())
    return min(float(x.numel()), (x.shape[1] * x.var() / spread).item())
