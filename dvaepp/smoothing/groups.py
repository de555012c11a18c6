"""One smoothing for all groups of units, or one for each: how models and bounds take either."""

from collections.abc import Sequence
from typing import TypeVar

from dvaepp.smoothing.base import Smoothing

Kind = TypeVar("Kind", bound=Smoothing)


def for_groups(smoothing: Kind | Sequence[Kind], num_groups: int) -> list[Kind]:
    """A smoothing for each group."""
    if isinstance(smoothing, Smoothing):
        return [smoothing] * num_groups
    if len(smoothing) != num_groups:
        raise ValueError(
            f"there must be one smoothing for all groups or one for each of {num_groups}, got {len(smoothing)}"
        )
    return list(smoothing)
