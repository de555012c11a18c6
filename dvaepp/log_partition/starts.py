"""Does log Z hold for chains that start elsewhere? A check against modes that the usual start never finds.

Tempering and annealing start from independent units. A mode may be narrow, so that no chain comes upon it from there,
and yet so deep that it carries most of Z: every diagnostic of the chains is then perfect, and log Z is wrong. Somebody
who knows states of that mode can see it, and a trained model knows some: the bits that its posterior gives to images
are states that training made probable. Given such states there are two tests.

A lower bound, without any sampling error. With I the largest block of independent units and C the others, each setting
of C stands for a set of states of its own, so for any set S of distinct settings

    log Z ≥ log Σ_{z_C in S} e^(-F(z_C)),      F(z_C) = -log Σ_{z_I} e^(-E(z)).

S are the given states and what a few Gibbs sweeps reach from them, since a given state may lie beside its mode's peak.

A second estimate, by tempering from the given states. Once the chains have mixed, the start is forgotten and the two
estimates of log Z agree within their standard errors. Where they do not, at least one of them has not mixed.
"""

import math
from typing import NamedTuple

import torch
from torch import Tensor

from dvaepp.errors import UsageError
from dvaepp.log_partition.exact import log_sums, split_units
from dvaepp.log_partition.result import LogPartition
from dvaepp.log_partition.tempering import default_sweeps, tempering
from dvaepp.priors.base import BoltzmannPrior
from dvaepp.samplers.gibbs import gibbs

BOUND_SWEEPS = 20  # after a few sweeps the bound grows only with the logarithm of their number
MAX_APART = 4.0  # standard errors; of 3000 comparisons of mixed chains about one exceeds it


class StartComparison(NamedTuple):
    """What the given states say about an estimate of log Z.

    `lower_bound` is never above log Z. `value` is log Z by chains that start from the states. Its standard error is
    infinite if these chains stayed in a mode, because their log Z is then unknown. `warnings` says in words what
    refutes the estimate.

    Choose it to read what `compare_starts` found; `warnings` is empty where nothing speaks against it.

    >>> prior = RBM(2, 2)
    >>> compare_starts(prior, torch.ones(8, 4), log_partition(prior), num_sweeps=200).warnings
    []
    """

    lower_bound: float
    value: float
    standard_error: float
    warnings: list[str]


@torch.no_grad()
def lower_bound(prior: BoltzmannPrior, states: Tensor) -> float:
    """A lower bound on log Z: the logarithm of the part of Z that belongs to the states (any number, units).

    Choose it to refute an estimate of log Z that is too small: the bound needs no sampling.

    >>> lower_bound(RBM(2, 2), torch.ones(1, 4)) <= log_partition(RBM(2, 2)).value
    True
    """
    prior.check_states(states, "states")
    enumerated, _ = split_units(prior)
    distinct = torch.unique(states.to(enumerated.device)[:, enumerated], dim=0)
    return torch.logsumexp(log_sums(prior, distinct.double()), 0).item()


@torch.no_grad()
def compare_starts(
    prior: BoltzmannPrior,
    states: Tensor,
    estimate: LogPartition,
    generator: torch.Generator | None = None,
    *,
    num_sweeps: int | None = None,
    num_replicas: int = 32,
    show_progress: bool | None = None,
) -> StartComparison:
    """Test an estimate of log Z with states (any number, units) that should be probable, e.g. bits of images.

    Chains from there make `num_sweeps` sweeps, without it a quarter of what the estimate took, since the second
    estimate need not be as precise as the first.

    Choose it after an estimate of a trained prior, with bits of images: chains may have missed their modes.

    >>> prior = RBM(2, 2)
    >>> found = compare_starts(prior, torch.ones(8, 4), log_partition(prior), num_sweeps=200)
    >>> found.lower_bound <= log_partition(prior).value
    True
    """
    prior.check_states(states, "states")
    if not math.isfinite(estimate.value):
        raise UsageError(f"the estimate of log Z must be finite, got {estimate.value}")
    if num_sweeps is None:
        num_sweeps = max(10, estimate.diagnostics.get("num_sweeps", default_sweeps(prior.num_units)) // 4)
    bound = lower_bound(prior, _around(prior, states, generator))
    other = tempering(
        prior,
        generator,
        num_sweeps=num_sweeps,
        num_replicas=num_replicas,
        initial=states,
        show_progress=show_progress,
    )
    return StartComparison(bound, other.value, other.standard_error, _warnings(estimate, bound, other, len(states)))


def with_starts(
    prior: BoltzmannPrior,
    estimate: LogPartition,
    states: Tensor,
    generator: torch.Generator | None = None,
    show_progress: bool | None = None,
) -> LogPartition:
    """The estimate with the outcome of `compare_starts` among its diagnostics and warnings."""
    found = compare_starts(prior, states, estimate, generator, show_progress=show_progress)
    error = found.standard_error if math.isfinite(found.standard_error) else None  # JSON knows no infinity
    starts = {"num_states": len(states), **found._asdict(), "standard_error": error}
    del starts["warnings"]
    warnings = [*estimate.diagnostics["warnings"], *found.warnings]
    return estimate._replace(diagnostics=estimate.diagnostics | {"starts": starts, "warnings": warnings})


def _around(prior: BoltzmannPrior, states: Tensor, generator: torch.Generator | None) -> Tensor:
    """The states and where each of a few Gibbs sweeps takes them."""
    visited = [states]
    for _ in range(BOUND_SWEEPS):
        visited.append(gibbs(prior, visited[-1], 1, generator))
    return torch.cat(visited)


def _warnings(estimate: LogPartition, bound: float, found: LogPartition, num_states: int) -> list[str]:
    warnings = []
    claimed = f"{estimate.value:.2f} ± {estimate.standard_error:.2f}"
    if bound > estimate.value + MAX_APART * estimate.standard_error + 1e-6:
        warnings.append(
            f"log Z is at least {bound:.2f}, by the {num_states} given states and their neighbours alone, "
            f"and not {claimed}: the estimate misses a mode; do not use it"
        )
    apart = abs(found.value - estimate.value)
    allowed = MAX_APART * math.hypot(found.standard_error, estimate.standard_error) + 1e-6
    if not math.isfinite(found.standard_error):  # chains that stay in a mode have no energies in common with others
        warnings.append(
            f"chains that start from the {num_states} given states never leave them for those of the estimate, "
            f"{claimed}: one start or both have not mixed; raise num_sweeps"
        )
    elif not apart <= allowed:
        warnings.append(
            f"chains that start from the {num_states} given states give log Z = {found.value:.2f} ± "
            f"{found.standard_error:.2f}, and not {claimed}: one start or both have not mixed; raise num_sweeps"
        )
    return warnings
