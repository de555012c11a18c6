"""Smoothing transformations of binary units (Sec. 3, App. A-C).

Members are found by looking: a file in this folder that defines a `Smoothing` makes the class importable from here.
"""

import sys
from typing import Any

from dvaepp.registry import members
from dvaepp.smoothing.base import Overlapping, Smoothing

MEMBERS: dict[str, type[Smoothing]] = members(sys.modules[__name__], Smoothing)  # type: ignore[type-abstract]
"""Every smoothing by the stem of its file."""

_classes = {member.__name__: member for member in MEMBERS.values()}
__all__ = ["MEMBERS", "Overlapping", "Smoothing", *_classes]


def __getattr__(name: str) -> Any:
    if name in _classes:
        return _classes[name]
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
