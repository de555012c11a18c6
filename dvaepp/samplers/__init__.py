"""Samplers of Boltzmann priors: chains in, chains out.

Members are found by looking: a file in this folder that defines a `Sampler` is a member under the stem of its name,
which is what `chains.sampler` of a recipe takes.
"""

import sys

from dvaepp.registry import members
from dvaepp.samplers.base import Chains, Sampler
from dvaepp.samplers.dimod import DimodSampler
from dvaepp.samplers.gibbs import GibbsSampler, gibbs
from dvaepp.samplers.tempering import TemperingSampler

MEMBERS: dict[str, type[Sampler]] = members(sys.modules[__name__], Sampler)  # type: ignore[type-abstract]
"""Every sampler by the stem of its file."""

__all__ = ["MEMBERS", "Chains", "DimodSampler", "GibbsSampler", "Sampler", "TemperingSampler", "gibbs"]
