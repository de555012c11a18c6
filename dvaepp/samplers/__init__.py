"""Samplers of Boltzmann priors: chains in, chains out."""

from dvaepp.samplers.base import Sampler
from dvaepp.samplers.external import DimodSampler
from dvaepp.samplers.gibbs import gibbs
from dvaepp.samplers.pcd import Chains

__all__ = ["Chains", "DimodSampler", "Sampler", "gibbs"]
