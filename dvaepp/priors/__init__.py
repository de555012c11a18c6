"""Priors p(z) over binary units: Boltzmann machines and directed ones.

Members are found by looking: a file in this folder that defines a `Prior` is a member under the stem of its name, which
is what `model.prior.name` of a recipe takes.
"""

import sys

from dvaepp.priors.base import BoltzmannPrior, Couplings
from dvaepp.priors.boltzmann_machine import BoltzmannMachine
from dvaepp.priors.bqm import from_bqm, to_bqm
from dvaepp.priors.directed import Directed
from dvaepp.priors.factorial import Factorial
from dvaepp.priors.family import DirectedPrior, Prior
from dvaepp.priors.rbm import RBM
from dvaepp.registry import members

MEMBERS: dict[str, type[Prior]] = members(sys.modules[__name__], Prior)  # type: ignore[type-abstract]
"""Every prior by the stem of its file."""

__all__ = [
    "MEMBERS",
    "RBM",
    "BoltzmannMachine",
    "BoltzmannPrior",
    "Couplings",
    "Directed",
    "DirectedPrior",
    "Factorial",
    "Prior",
    "from_bqm",
    "to_bqm",
]
