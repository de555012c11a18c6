"""What changes over training, as functions of progress t = step / steps in [0, 1]."""

from typing import Any

from dvaepp.recipes.schema import OptimizerConfig
from dvaepp.recipes.smoothing import SmoothingConfig
from dvaepp.smoothing import MEMBERS
from dvaepp.smoothing.base import Smoothing

LOGS = 500  # about the number of lines in the metrics of a run
WARMUP_FACTOR = 0.1  # public runs of the model start at 3e-4 and go on at 3e-3


def log_every(steps: int) -> int:
    """Steps between two lines of metrics."""
    return max(1, steps // LOGS)


def line_due(step: int, steps: int) -> bool:
    """Whether the step of this number has a line in the metrics."""
    return step % log_every(steps) == 0 or step == steps


def learning_rate(optimizer: OptimizerConfig, t: float, plateaus: int = 0) -> float:
    """A tenth of the rate during warm-up, then the rate, multiplied by each decay whose time has come (App. F).

    `plateaus` counts the validations at which the bound had stopped improving (App. G).
    """
    rate = optimizer.learning_rate * (WARMUP_FACTOR if t < optimizer.warmup else 1.0)
    for decay in optimizer.decays:
        rate *= decay.factor if t >= decay.at else 1.0
    return rate * optimizer.plateau.factor**plateaus if optimizer.plateau else rate


def kl_weight(warmup: float, t: float) -> float:
    """γ, linear from 0 to 1 over the first `warmup` of training (App. F)."""
    return 1.0 if warmup == 0 else min(1.0, t / warmup)


def smoothing_at(smoothing: SmoothingConfig, t: float) -> Smoothing | list[Smoothing]:
    """The smoothing at progress t: one for all groups of units, or a list with one for each."""
    member: Any = MEMBERS[smoothing.name]
    made: list[Smoothing] = [member(**parameters, validate_args=False) for parameters in smoothing.at(t)]
    return made[0] if smoothing.num_groups is None else made
