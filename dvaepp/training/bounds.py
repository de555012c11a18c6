"""The terms of a model's bound for one batch, each group's KL by itself."""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from dvaepp.models.dvaepp import DVAE, Posterior
from dvaepp.models.feedforward import FeedForward
from dvaepp.models.noise import Noise
from dvaepp.objectives import boltzmann_kl, joint_per_group, marginal_per_group, rolfe_kl
from dvaepp.priors.base import BoltzmannPrior
from dvaepp.smoothing.base import Overlapping, Smoothing
from dvaepp.smoothing.groups import for_groups

Model = FeedForward | DVAE


class Terms(NamedTuple):
    """log p(x|ζ, h) (batch,); KL (groups, batch), a Boltzmann prior's in one; logits of the binary global groups."""

    log_likelihood: Tensor
    kl: Tensor
    logits: list[Tensor]


def terms(
    objective: str,
    model: Model,
    x: Tensor,
    smoothing: Smoothing | Sequence[Smoothing],
    log_z: Tensor | float,
    noise: Noise,
    *,
    weights: bool = False,
) -> Terms:
    """One sample of each term for images x (batch, channels, height, width); `log_z` as for `boltzmann_kl`.

    `smoothing` is one for all groups of binary units or one for each: global groups first, then local ones.

    `weights`: the terms make importance weights, so that the marginal KL's gradient has to keep its score.
    """
    if isinstance(model, DVAE):
        return _convolutional(objective, model, x, smoothing, log_z, noise)
    x = x.flatten(1)
    rho = [noise.uniform(len(x), size) for size in model.group_sizes]
    logits, zeta = model.posterior(x, rho, smoothing)
    if model.prior is not None:
        kl = _undirected(objective, model.prior, logits, zeta, for_groups(smoothing, len(zeta)), log_z)
    elif objective == "joint":
        kl = joint_per_group(logits, model.prior_logits(zeta))
    else:
        each = _overlapping(for_groups(smoothing, len(zeta)))
        kl = marginal_per_group(logits, model.prior_logits(zeta), zeta, each, path_only=not weights)
    return Terms(model.log_likelihood(x, zeta), kl, logits)


def _undirected(
    objective: str,
    prior: BoltzmannPrior,
    logits: list[Tensor],
    zeta: list[Tensor],
    smoothing: Sequence[Smoothing],
    log_z: Tensor | float,
) -> Tensor:
    if objective == "rolfe":
        return rolfe_kl(prior, logits, zeta, log_z)[None]
    return boltzmann_kl(prior, logits, zeta, _overlapping(smoothing), log_z)[None]


def _overlapping(smoothing: Sequence[Smoothing]) -> list[Overlapping]:
    """The same smoothings: a recipe with another kind is refused when it is built."""
    return [each for each in smoothing if isinstance(each, Overlapping)]


def _convolutional(
    objective: str,
    model: DVAE,
    x: Tensor,
    smoothing: Smoothing | Sequence[Smoothing],
    log_z: Tensor | float,
    noise: Noise,
) -> Terms:
    q = Posterior(model, model.encode(x), noise, smoothing)
    per_global, per_local = model.smoothings(smoothing)
    drawn = model.top_down(q, len(x))
    zeta, h = [group.value for group in drawn.zeta], [group.value for group in drawn.h]
    kl: list[Tensor] = []
    if model.prior is not None:
        kl.append(_undirected(objective, model.prior, q.global_parameters, zeta, per_global, log_z)[0])
    elif zeta:
        latent = model.global_latent
        groups = zip(q.global_parameters, model.global_priors(), zeta, per_global, strict=True)
        kl += [latent.kl(*group) for group in groups]
    local = zip(q.local_parameters, model.local_priors(drawn), h, per_local, strict=True)
    kl += [model.local_latent.kl(*group) for group in local]
    log_likelihood = model.decoder(drawn.features, model.canvas.pad(x))
    binary = model.global_kind in ("rbm", "bernoulli")
    return Terms(log_likelihood, torch.stack(kl), q.global_parameters if binary else [])
