"""log Z while the parameters move: annealed importance sampling along the path that training takes.

Between two estimates, walkers follow the prior from the parameters θ where it was last looked at to θ', in K steps of
the straight line between them, with a Gibbs sweep after each:

    log w <- log w + F_{k-1}(z) - F_k(z),   z <- sweep of z at θ_k,   θ_k = θ + k/K (θ' - θ),
    log Z(θ') = log Z(anchor) + log mean w,                                     (Neal 2001, Jarzynski 1997)

where F sums out one block of units, which spreads the weights less than the energy does. E[w] is exact however far the
walkers lag behind. When few of them carry the weight they are drawn anew in proportion to it and all count the same
again, which keeps the mean.

Two simpler estimates fail. The persistent chains of training (App. E) cannot be the walkers: the gradient was computed
from these chains and has just raised their energies, so that log Z would fall behind, by about a nat at every step of
the recipe `demo`. And walkers that follow every single step of training spend their sweeps on the noise of its path,
which the straight line over some fifty steps leaves out.
"""

import copy
import math
from typing import NamedTuple

import torch
from torch import Tensor

from dvaepp.priors.base import BoltzmannPrior
from dvaepp.samplers.blocks import BlockGibbs
from dvaepp.samplers.noise import Noise

WALKERS = 64


class Follower(NamedTuple):
    """Walkers z (walkers, units), their log weights (walkers,), the parameters they are at, and log Z at the anchor."""

    z: Tensor
    log_weights: Tensor
    parameters: dict[str, Tensor]
    anchor: float

    @property
    def log_z(self) -> float:
        """The estimate for the parameters that the walkers are at."""
        return self.anchor + _log_mean(self.log_weights)


def start(prior: BoltzmannPrior, z: Tensor, log_z: float) -> Follower:
    """Walkers at the states z (any number, units) of the prior, taken in turn, where log Z is known."""
    rows = torch.arange(WALKERS, dtype=torch.int64, device=z.device) % len(z)
    weights = torch.zeros(WALKERS, dtype=torch.float64, device=z.device)
    return Follower(z[rows].float(), weights, _parameters(prior), log_z)


@torch.no_grad()
def follow(follower: Follower, prior: BoltzmannPrior, generator: torch.Generator, num_sweeps: int) -> Follower:
    """Take the walkers to the parameters that the prior has now, in `num_sweeps` steps."""
    moving = copy.deepcopy(prior)
    moving.load_state_dict(follower.parameters, strict=False)
    target, noise = _parameters(prior), Noise(generator, follower.z.device)
    z, log_weights = follower.z, follower.log_weights.clone()
    for k in range(1, num_sweeps + 1):
        log_weights += _free_energy(moving, z)
        for name, parameter in moving.named_parameters():
            torch.lerp(follower.parameters[name], target[name], k / num_sweeps, out=parameter.data)
        log_weights -= _free_energy(moving, z)
        engine = BlockGibbs(moving, len(z))
        engine.set_states(z)
        engine.run(noise, 1)
        z = engine.states()
    return _evened(Follower(z, log_weights, target, follower.anchor), generator)


def anchored(follower: Follower, log_z: float, generator: torch.Generator) -> Follower:
    """The same walkers, all of one weight, where log Z has just been estimated by better means."""
    return _drawn_anew(follower, generator)._replace(anchor=log_z)


def _evened(follower: Follower, generator: torch.Generator) -> Follower:
    """The walkers, drawn anew if their weights are worth fewer than half of them."""
    shares = torch.softmax(follower.log_weights, 0)
    effective = 1 / (shares**2).sum().item()
    return follower if effective >= len(shares) / 2 else _drawn_anew(follower, generator)


def _drawn_anew(follower: Follower, generator: torch.Generator) -> Follower:
    """Walkers in proportion to their weights, by one uniform number for all: systematic resampling."""
    n, device = len(follower.z), follower.z.device
    ends = torch.softmax(follower.log_weights, 0).cumsum(0)
    offset = torch.rand((), generator=generator, dtype=torch.float64, device=device)
    places = (torch.arange(n, dtype=torch.float64, device=device) + offset) / n
    rows = torch.searchsorted(ends, places).clamp(max=n - 1)
    return follower._replace(
        z=follower.z[rows], log_weights=torch.zeros_like(follower.log_weights), anchor=follower.log_z
    )


def _free_energy(prior: BoltzmannPrior, z: Tensor) -> Tensor:
    """F of the units outside the first block that a sweep draws, (walkers,) in float64."""
    form = prior.block_form()
    out = form.conditionals[0].out
    return prior.free_energy(z, out if form.order is None else form.order[out]).double()


def _log_mean(log_weights: Tensor) -> float:
    return (torch.logsumexp(log_weights, 0) - math.log(len(log_weights))).item()


def _parameters(prior: BoltzmannPrior) -> dict[str, Tensor]:
    return {name: parameter.detach().clone() for name, parameter in prior.named_parameters()}
