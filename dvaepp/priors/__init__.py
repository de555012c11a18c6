"""Priors p(z): parameters and energies only; samplers and log Z live in their own folders."""

from dvaepp.priors.base import BoltzmannPrior, Couplings
from dvaepp.priors.boltzmann_machine import BoltzmannMachine
from dvaepp.priors.bqm import from_bqm, to_bqm
from dvaepp.priors.rbm import RBM

__all__ = ["RBM", "BoltzmannMachine", "BoltzmannPrior", "Couplings", "from_bqm", "to_bqm"]
