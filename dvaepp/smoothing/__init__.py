"""Smoothing transformations of binary units (Sec. 3, App. A-C).

Members are found by looking: a file in this folder that defines a `Smoothing` makes the class importable from here.
"""

import sys
from typing import TYPE_CHECKING

from dvaepp.registry import members
from dvaepp.smoothing.base import Overlapping, Smoothing

MEMBERS: dict[str, type[Smoothing]] = members(sys.modules[__name__], Smoothing)  # type: ignore[type-abstract]
"""Every smoothing by the stem of its file."""

_classes = {member.__name__: member for member in MEMBERS.values()}
__all__ = ["MEMBERS", "Overlapping", "Smoothing", *_classes]


if TYPE_CHECKING:  # what a type checker cannot find by looking
    from dvaepp.smoothing.binary import Binary as Binary
    from dvaepp.smoothing.concrete import Concrete as Concrete
    from dvaepp.smoothing.exponential import Exponential as Exponential
    from dvaepp.smoothing.gaussian import Gaussian as Gaussian
    from dvaepp.smoothing.logistic import Logistic as Logistic
    from dvaepp.smoothing.power_law import PowerLaw as PowerLaw
    from dvaepp.smoothing.spike_exponential import SpikeExponential as SpikeExponential
    from dvaepp.smoothing.uniform_exponential import UniformExponential as UniformExponential
else:
    globals().update(_classes)


def __dir__() -> list[str]:
    return sorted(__all__)
