"""log Z of a Boltzmann prior, which every log-likelihood under such a prior contains."""

import inspect
from collections.abc import Callable
from typing import Any, Literal, get_args

import torch

from dvaepp.errors import UsageError
from dvaepp.log_partition.ais import ais
from dvaepp.log_partition.exact import exact, num_enumerated
from dvaepp.log_partition.result import LogPartition
from dvaepp.log_partition.starts import StartComparison, compare_starts, lower_bound
from dvaepp.log_partition.tempering import tempering
from dvaepp.priors.base import BoltzmannPrior

__all__ = [
    "LogPartition",
    "StartComparison",
    "ais",
    "compare_starts",
    "exact",
    "log_partition",
    "lower_bound",
    "tempering",
]

Method = Literal["auto", "exact", "ais", "tempering"]
METHODS: dict[str, Callable[..., LogPartition]] = {"exact": exact, "ais": ais, "tempering": tempering}
FEASIBLE = 2e9  # states x units that `auto` sums exactly: about half a minute


def log_partition(
    prior: BoltzmannPrior, method: str = "auto", generator: torch.Generator | None = None, **options: Any
) -> LogPartition:
    """log Z with an error bar.

    `exact` is a sum in float64, for at most 24 units on the smaller side. `ais` is annealed importance sampling.
    `tempering` is the paper's method. `auto` is the sum where that takes seconds, and tempering otherwise. `options` go
    to the method: num_chains and num_temperatures to `ais`; num_sweeps (100 000 in the paper), num_replicas,
    target_swap_rate and initial to `tempering`; show_progress to all. `auto` accepts those of `tempering`, and ignores
    them where it sums. `diagnostics["warnings"]` says why an estimate cannot be trusted. `compare_starts` looks for
    modes that no chain has visited (docs/log_partition.md).

    Choose it whenever a log-likelihood needs log Z: it takes the exact sum where that is quick.

    >>> estimate = log_partition(RBM(3, 3))
    >>> estimate.method, round(estimate.value, 6)  # 6 log 2
    ('exact', 4.158883)
    """
    if method not in get_args(Method):
        raise UsageError(f"method must be one of {', '.join(get_args(Method))}, got {method!r}")
    known = _options_of(tempering if method == "auto" else METHODS[method])
    if unknown := [name for name in options if name not in known]:
        raise UsageError(f"method {method!r} has no option {unknown[0]!r}; it takes {', '.join(known)}")
    if method == "auto":
        n = num_enumerated(prior)
        method = "exact" if n <= 24 and 2.0**n * prior.num_units <= FEASIBLE else "tempering"
    if method == "exact":
        return exact(prior, show_progress=options.get("show_progress"))
    return METHODS[method](prior, generator, **options)


def _options_of(method: Callable[..., LogPartition]) -> list[str]:
    return [name for name in inspect.signature(method).parameters if name not in ("prior", "generator")]
