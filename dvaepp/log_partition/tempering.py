"""log Z by parallel tempering (App. G) and Bennett's acceptance ratio between neighbouring temperatures.

With samples x of D at β_t and y at β_{t+1}, Δ = β_{t+1} - β_t, the difference r = log Z_{t+1} - log Z_t solves

    mean σ(Δ x - r) = mean σ(r - Δ y)                                          (Bennett 1976)

and log Z = Σ h(c) + Σ_t r_t with h(c) = log(1 + e^c) of the independent units at β = 0. The replicas are independent,
so the error bar is taken over them: to first order replica m moves r_t by its share of the equation divided by the
slope, summed over t before the variance is taken. That counts autocorrelation and what neighbours have in common.

The run says whether it can be trusted (`diagnostics`): R-hat and the effective sample size of D at every temperature
and of the summands of log Z itself, and whether the two halves of the run give the same log Z. All of it rests on what
the chains have seen: a mode that no replica has entered leaves no trace, and `starts` is the check for that.
"""

import math
from typing import Any, NamedTuple

import torch
from torch import Tensor

from dvaepp.errors import UsageError
from dvaepp.log_partition.diagnostics import MAX_R_HAT, MIN_EFFECTIVE_SAMPLES, effective_sample_size, split_r_hat
from dvaepp.log_partition.result import LogPartition
from dvaepp.priors.base import BoltzmannPrior
from dvaepp.progress import progress
from dvaepp.samplers.blocks import base_from_pilot
from dvaepp.samplers.noise import Noise
from dvaepp.samplers.tempering import Tempering, adapt_ladder

MAX_RECORDS = 3000  # per chain; longer runs are thinned
PATIENCE = 8  # a run of default length goes on to at most so many times that length until its diagnostics hold
MAX_STANDARD_ERROR = 0.05  # nat; models that differ by a tenth, which is two of these, are to be told apart
MAX_DRIFT = 4.0  # standard errors between the halves of a run; of 3000 runs of 32 good replicas one exceeds it


def default_sweeps(num_units: int) -> int:
    """The number of sweeps for a machine of this size; larger ones mix more slowly. The paper makes 100 000."""
    return min(20_000, 1000 + 20 * num_units)


@torch.no_grad()
def tempering(
    prior: BoltzmannPrior,
    generator: torch.Generator | None = None,
    *,
    num_sweeps: int | None = None,
    num_replicas: int = 32,
    target_swap_rate: float = 0.6,
    initial: Tensor | None = None,
    show_progress: bool | None = None,
) -> LogPartition:
    """Estimate log Z with an adapted ladder; a fifth of `num_sweeps` is made on top, to forget the start.

    Without `num_sweeps` the length suits the size and doubles, at most to eight times that, while diagnostics ask for
    more sweeps. Chains start from independent units, or from the states `initial` (any number, units) in turn.

    Choose it for trained machines, which have far modes: it is the paper's, and its error bar counts how chains mix.

    >>> tempering(RBM(2, 2), torch.Generator().manual_seed(0), num_sweeps=200, num_replicas=4).method
    'tempering'
    """
    until_mixed = num_sweeps is None
    num_sweeps = default_sweeps(prior.num_units) if num_sweeps is None else num_sweeps
    if num_sweeps < 10 or num_replicas < 4:
        raise UsageError(f"tempering needs num_sweeps >= 10 and num_replicas >= 4, got {num_sweeps} and {num_replicas}")
    prior.check()
    noise = Noise(generator, prior.couplings().bias.device)
    base = base_from_pilot(prior, noise)
    adapted = adapt_ladder(prior, base, noise, target_swap_rate=target_swap_rate)
    run = Tempering(prior, adapted.ladder, num_replicas, base, noise)
    if initial is not None:
        prior.check_states(initial, "initial")
        run.start_from(initial)
    trace, longest = Trace(), PATIENCE * num_sweeps if until_mixed else num_sweeps
    _advance(run, trace, num_sweeps + num_sweeps // 5, show_progress)
    found = _estimate(run, trace, num_sweeps)
    while found.diagnostics["needs_sweeps"] and 2 * num_sweeps <= longest:
        _advance(run, trace, num_sweeps + num_sweeps // 5, show_progress)
        num_sweeps *= 2
        found = _estimate(run, trace, num_sweeps)
    return found


class Trace:
    """D of every chain at every level, sweep by sweep; every other record is dropped whenever there are too many."""

    def __init__(self) -> None:
        self._records: list[Tensor] = []
        self._sweeps, self._thin = 0, 1

    def add(self, gap: Tensor) -> None:
        if self._sweeps % self._thin == 0:
            self._records.append(gap)
        self._sweeps += 1
        if len(self._records) > MAX_RECORDS:
            self._records, self._thin = self._records[::2], 2 * self._thin

    def after_burn_in(self) -> Tensor:
        """All records but the first sixth, (records, replicas, levels), on the CPU, where sorting them is cheap."""
        return torch.stack(self._records[len(self._records) // 6 :]).cpu()


def _advance(run: Tempering, trace: Trace, num_sweeps: int, show_progress: bool | None) -> None:
    with progress(f"log Z by tempering, {run.num_levels} temperatures", num_sweeps, show_progress) as advance:
        for _ in range(num_sweeps):
            trace.add(run.sweep())
            advance(1)


def _estimate(run: Tempering, trace: Trace, num_sweeps: int) -> LogPartition:
    gaps, ladder = trace.after_burn_in(), run.ladder.cpu()
    found = bennett(gaps, ladder)
    diagnostics = _diagnostics(gaps, found, run, num_sweeps)
    return LogPartition(run.engine.log_base_z() + found.value, found.standard_error, "tempering", diagnostics)


class Bennett(NamedTuple):
    """Σ_t r_t, its standard error, and by how much each record (records, replicas) moves it from the truth."""

    value: float
    standard_error: float
    influence: Tensor


def bennett(gaps: Tensor, ladder: Tensor) -> Bennett:
    """Solve for every r_t by safeguarded Newton steps, given D (records, replicas, levels)."""
    delta = ladder.diff()
    below, above = gaps[..., :-1] * delta, gaps[..., 1:] * delta
    r = (below.mean((0, 1)) + above.mean((0, 1))) / 2  # thermodynamic integration comes near the solution
    low = torch.minimum(below.amin((0, 1)), above.amin((0, 1)))
    high = torch.maximum(below.amax((0, 1)), above.amax((0, 1)))
    for _ in range(100):
        up, down = torch.sigmoid(below - r), torch.sigmoid(r - above)
        excess = (up - down).mean((0, 1))  # decreasing in r
        low, high = torch.where(excess > 0, r, low), torch.where(excess > 0, high, r)
        slope = (up * (1 - up) + down * (1 - down)).mean((0, 1))
        newton = r + excess / slope
        step = torch.where((newton > low) & (newton < high), newton, (low + high) / 2)
        done = bool(((step - r).abs() < 1e-11 * (1 + r.abs())).all())
        r = step
        if done:
            break
    influence = ((up - down) / slope).sum(-1)
    standard_error = (influence.mean(0).std() / math.sqrt(influence.shape[1])).item()
    # The slope is about the share of samples that both temperatures visit. Without one such sample r_t is unknown.
    if not math.isfinite(standard_error) or bool((slope * influence.numel() < 1).any()):
        standard_error = math.inf
    return Bennett(r.sum().item(), standard_error, influence)


def _diagnostics(gaps: Tensor, found: Bennett, run: Tempering, num_sweeps: int) -> dict[str, Any]:
    series = [*gaps.unbind(-1), found.influence.nan_to_num()]
    r_hats = [split_r_hat(x) for x in series]
    ess = min(effective_sample_size(x) for x in series)
    drift = _drift(gaps, run.ladder.cpu())
    swap_rates = run.swap_rates()
    more = f"raise num_sweeps, now {num_sweeps}"
    warnings = []
    if max(r_hats) >= MAX_R_HAT:
        warnings.append(f"the chains have not mixed: R-hat is {max(r_hats):.3f}, not below {MAX_R_HAT}; {more}")
    if ess <= MIN_EFFECTIVE_SAMPLES:
        limit = f"not above {MIN_EFFECTIVE_SAMPLES:.0f}"
        warnings.append(f"the samples are too few: effective sample size {ess:.0f}, {limit}; {more}, or num_replicas")
    if abs(drift) > MAX_DRIFT:
        warnings.append(f"log Z still drifts: the halves of the run differ by {abs(drift):.1f} standard errors; {more}")
    if found.standard_error > MAX_STANDARD_ERROR:
        limit = f"{found.standard_error:.2f} nat, above {MAX_STANDARD_ERROR}"
        warnings.append(f"log Z is not precise: its standard error is {limit}; {more}, or num_replicas")
    if run.round_trips < run.num_replicas:
        trips = f"{run.round_trips} round trips between β = 0 and 1"
        warnings.append(f"{run.num_replicas} replicas made only {trips}, fewer than one each; {more}")
    needs_sweeps = bool(warnings)
    if min(swap_rates) < 0.1:
        warnings.append(f"neighbouring temperatures hardly swap: rate {min(swap_rates):.2f}; raise target_swap_rate")
    return {
        "ladder": run.ladder.tolist(),
        "swap_rates": swap_rates,
        "effective_sample_size": ess,
        "r_hat": max(r_hats),
        "drift": drift,
        "round_trips": run.round_trips,
        "num_replicas": run.num_replicas,
        "num_sweeps": num_sweeps,
        "needs_sweeps": needs_sweeps,
        "warnings": warnings,
    }


def _drift(gaps: Tensor, ladder: Tensor) -> float:
    """log Z by the second half of the run minus that by the first, in standard errors over replicas.

    R-hat looks at one temperature at a time, where a drift may be small beside the spread. In log Z the drifts of all
    temperatures add up.
    """
    half = len(gaps) // 2
    first, second = bennett(gaps[:half], ladder), bennett(gaps[-half:], ladder)
    apart = second.influence.mean(0) - first.influence.mean(0)
    error = (apart.std() / math.sqrt(len(apart))).item()
    difference = second.value - first.value
    if not math.isfinite(error):
        return math.inf
    return difference / error if error else 0.0
