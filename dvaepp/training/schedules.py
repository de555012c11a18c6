"""What changes over training, as functions of progress t = step / steps in [0, 1]."""

from typing import Any

from dvaepp.recipes.schema import Optimizer, Smoothing
from dvaepp.smoothing import MEMBERS
from dvaepp.smoothing.base import Smoothing as SmoothingMember
from dvaepp.smoothing.binary import Binary

WARMUP_FACTOR = 0.1  # 3e-4 before 3e-3 in the public runs


def learning_rate(optimizer: Optimizer, t: float, plateaus: int = 0) -> float:
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


def sharpness(smoothing: Smoothing, t: float) -> float:
    """β (or whatever the smoothing's parameter is), linear from start to end (Sec. 7.1)."""
    return smoothing.start + (smoothing.end - smoothing.start) * t


def smoothing_at(smoothing: Smoothing, t: float) -> SmoothingMember:
    if smoothing.name == "binary":
        return Binary(validate_args=False)
    member: Any = MEMBERS[smoothing.name]
    made: SmoothingMember = member(sharpness(smoothing, t), validate_args=False)
    return made
