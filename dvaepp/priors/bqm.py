"""A Boltzmann machine as a binary quadratic model and back, so that other engines can sample it (extra `dwave`).

A BQM's energy is E(z) = Σ h_i z_i + Σ J_ij z_i z_j + offset over {0, 1} (or over spins ±1, which dimod converts), so
h = -b and J = -W.
"""

from typing import TYPE_CHECKING, Any

import torch

from dvaepp.errors import UsageError
from dvaepp.priors.base import BoltzmannPrior
from dvaepp.priors.boltzmann_machine import BoltzmannMachine

if TYPE_CHECKING:
    import dimod


def _dimod() -> Any:
    try:
        import dimod
    except ImportError:
        raise UsageError("this needs dimod: pip install 'dvaepp[dwave]'") from None
    return dimod


def to_bqm(prior: BoltzmannPrior) -> "dimod.BinaryQuadraticModel":
    """The prior's energy over variables 0 .. units-1, in that order, vartype BINARY; `.spin` of it is the Ising form.

    The prior is the Boltzmann distribution of this energy at inverse temperature 1. Couplings that are zero are kept.

    Choose it to hand a trained prior to dimod, an annealer or any solver of quadratic binary problems.

    >>> to_bqm(RBM(2, 2)).num_variables
    4
    """
    prior.check()
    bias, matrix = (p.detach().cpu().double() for p in prior.couplings())
    i, j = torch.triu(prior.adjacency().cpu(), 1).nonzero(as_tuple=True)
    bqm = _dimod().BinaryQuadraticModel("BINARY")
    bqm.add_linear_from(enumerate((-bias).tolist()))  # first: it fixes the order of the variables
    bqm.add_quadratic_from(zip(i.tolist(), j.tolist(), (-matrix[i, j]).tolist(), strict=True))
    return bqm


def from_bqm(bqm: "dimod.BinaryQuadraticModel") -> BoltzmannMachine:
    """A machine with the model's energy up to its constant; units in the order of `bqm.variables`, float64.

    Choose it to estimate log Z of a dimod model, or to sample it, as of any Boltzmann machine.

    >>> from_bqm(to_bqm(RBM(2, 2))).num_units
    4
    """
    binary = bqm.change_vartype(_dimod().BINARY, inplace=False)
    position = {variable: k for k, variable in enumerate(binary.variables)}
    units = len(position)
    mask = torch.zeros(units, units, dtype=torch.bool, device="cpu")
    weight = torch.zeros(units, units, dtype=torch.float64, device="cpu")
    for (u, v), value in binary.quadratic.items():
        i, j = sorted((position[u], position[v]))
        mask[i, j] = mask[j, i] = True
        weight[i, j] = -value
    machine = BoltzmannMachine(units, mask).double()
    with torch.no_grad():
        machine.weight.copy_(weight)
        linear = [-binary.linear[v] for v in binary.variables]
        machine.bias.copy_(torch.tensor(linear, dtype=torch.float64, device="cpu"))
    if not all(bool(torch.isfinite(p).all()) for p in machine.parameters()):
        raise ValueError("the model's biases must be finite, got NaN or infinity")
    return machine
