"""Gradient estimators for binary latent variables: the baselines of Table 1 (Sec. 7.1) and their relatives.

Members are found by looking: a file in this folder that defines an `Estimator` makes the class importable from here.
"""

import sys
from typing import Any

from dvaepp.estimators.base import Estimate, Estimator, RelaxedTarget, Target
from dvaepp.registry import members

MEMBERS: dict[str, type[Estimator]] = members(sys.modules[__name__], Estimator)  # type: ignore[type-abstract]
"""Every estimator by the stem of its file."""

_classes = {member.__name__: member for member in MEMBERS.values()}
__all__ = ["MEMBERS", "Estimate", "Estimator", "RelaxedTarget", "Target", *_classes]


def __getattr__(name: str) -> Any:
    if name in _classes:
        return _classes[name]
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
