"""log Z by annealed importance sampling (Neal 2001) along the path of `samplers.blocks`.

    log w = Σ_k (β_{k+1} - β_k) D(z_k),   z_0 ~ independent units,   z_{k+1} by a Gibbs sweep at β_{k+1} from z_k,
    log Z = log Z_0 + log E[w].

The mean of w is unbiased. Its logarithm is too low on average, by half the squared standard error.

The chains are independent, so the diagnostic is the effective sample size of their weights, (Σ w)² / Σ w². It is small
where few chains carry most of the weight, and the error bar then means little. It says nothing about weights that no
chain has: if all chains miss a mode, the weights are even, the effective sample size is large, and log Z is too low.
"""

import math

import torch

from dvaepp.errors import UsageError
from dvaepp.log_partition.diagnostics import MIN_EFFECTIVE_SAMPLES
from dvaepp.log_partition.result import LogPartition
from dvaepp.priors.base import BoltzmannPrior
from dvaepp.progress import progress
from dvaepp.samplers.blocks import BlockGibbs, base_from_pilot
from dvaepp.samplers.noise import Noise


@torch.no_grad()
def ais(
    prior: BoltzmannPrior,
    generator: torch.Generator | None = None,
    *,
    num_chains: int = 1024,
    num_temperatures: int = 1000,
    show_progress: bool | None = None,
) -> LogPartition:
    """Estimate log Z with `num_temperatures` steps, equally spaced from β = 0 to 1.

    Choose it as a check of `tempering`, or where a machine is too large for a ladder of temperatures in memory.

    >>> ais(RBM(2, 2), torch.Generator().manual_seed(0), num_chains=64, num_temperatures=10).method
    'ais'
    """
    if num_chains < 2 or num_temperatures < 1:
        raise UsageError(
            f"ais needs num_chains >= 2 and num_temperatures >= 1, got {num_chains} and {num_temperatures}"
        )
    prior.check()
    device = prior.couplings().bias.device
    noise = Noise(generator, device)
    engine = BlockGibbs(prior, num_chains, base_from_pilot(prior, noise), exact_energies=True)
    engine.draw_base(noise)
    log_w = torch.zeros(num_chains, dtype=torch.float64, device=device)
    with progress("log Z by AIS", num_temperatures, show_progress) as advance:
        for k in range(1, num_temperatures + 1):
            log_w += engine.gap() / num_temperatures
            engine.sweep(noise, torch.full_like(log_w, k / num_temperatures))
            advance(1)
    mean = torch.logsumexp(log_w, 0) - math.log(num_chains)
    ratio = (log_w - mean).exp()  # w / mean(w)
    standard_error = (ratio.std() / math.sqrt(num_chains)).item()
    ess = (ratio.sum() ** 2 / (ratio**2).sum()).item()
    warnings = []
    if ess <= MIN_EFFECTIVE_SAMPLES:
        # If the weights are even there are too few chains, and otherwise the steps of β are too large.
        remedy = "num_chains" if ess > num_chains / 2 else "num_temperatures"
        limit = f"not above {MIN_EFFECTIVE_SAMPLES:.0f}"
        warnings.append(f"the weights of {num_chains} chains are worth {ess:.0f} samples, {limit}; raise {remedy}")
    diagnostics = {
        "effective_sample_size": ess,
        "log_weight_standard_deviation": log_w.std().item(),
        "num_chains": num_chains,
        "num_temperatures": num_temperatures,
        "warnings": warnings,
    }
    return LogPartition(engine.log_base_z() + mean.item(), standard_error, "ais", diagnostics)
