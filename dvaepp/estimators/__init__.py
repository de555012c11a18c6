"""Gradient estimators for binary latent variables: the baselines of Table 1 (Sec. 7.1) and their relatives.

Members are found by looking: a file in this folder that defines an `Estimator` makes the class importable from here.
"""

import sys
from typing import TYPE_CHECKING

from dvaepp.estimators.base import Estimate, Estimator, RelaxedTarget, Target
from dvaepp.registry import members

MEMBERS: dict[str, type[Estimator]] = members(sys.modules[__name__], Estimator)  # type: ignore[type-abstract]
"""Every estimator by the stem of its file."""

_classes = {member.__name__: member for member in MEMBERS.values()}
__all__ = ["MEMBERS", "Estimate", "Estimator", "RelaxedTarget", "Target", *_classes]


if TYPE_CHECKING:  # what a type checker cannot find by looking
    from dvaepp.estimators.arm import ARM as ARM
    from dvaepp.estimators.concrete import ConcreteEstimator as ConcreteEstimator
    from dvaepp.estimators.disarm import DisARM as DisARM
    from dvaepp.estimators.gumbel_rao import GumbelRao as GumbelRao
    from dvaepp.estimators.muprop import MuProp as MuProp
    from dvaepp.estimators.nvil import NVIL as NVIL
    from dvaepp.estimators.rebar import REBAR as REBAR
    from dvaepp.estimators.relax import RELAX as RELAX
    from dvaepp.estimators.straight_through import StraightThrough as StraightThrough
    from dvaepp.estimators.vimco import VIMCO as VIMCO
else:
    globals().update(_classes)


def __dir__() -> list[str]:
    return sorted(__all__)
