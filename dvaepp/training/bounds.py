"""The terms of a model's bound for one batch, each group's KL by itself."""

from typing import NamedTuple

import torch
from torch import Tensor

from dvaepp.models.dvaepp import DVAE, Posterior
from dvaepp.models.feedforward import FeedForward
from dvaepp.models.noise import Noise
from dvaepp.objectives import boltzmann_kl, joint_per_group, marginal_per_group, rolfe_kl
from dvaepp.priors.base import BoltzmannPrior
from dvaepp.smoothing.base import Overlapping, Smoothing

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
    smoothing: Smoothing,
    log_z: Tensor | float,
    noise: Noise,
    *,
    weights: bool = False,
) -> Terms:
    """One sample of each term for images x (batch, channels, height, width); `log_z` as for `boltzmann_kl`.

    `weights`: the terms make importance weights, so that the marginal KL's gradient has to keep its score.
    """
    if isinstance(model, DVAE):
        return _convolutional(objective, model, x, smoothing, log_z, noise)
    x = x.flatten(1)
    rho = [noise.uniform(len(x), size) for size in model.group_sizes]
    logits, zeta = model.posterior(x, rho, smoothing)
    if model.prior is not None:
        kl = _undirected(objective, model.prior, logits, zeta, smoothing, log_z)
    elif objective == "joint":
        kl = joint_per_group(logits, model.prior_logits(zeta))
    else:
        assert isinstance(smoothing, Overlapping)
        kl = marginal_per_group(logits, model.prior_logits(zeta), zeta, smoothing, path_only=not weights)
    return Terms(model.log_likelihood(x, zeta), kl, logits)


def _undirected(
    objective: str,
    prior: BoltzmannPrior,
    logits: list[Tensor],
    zeta: list[Tensor],
    smoothing: Smoothing,
    log_z: Tensor | float,
) -> Tensor:
    if objective == "rolfe":
        return rolfe_kl(prior, logits, zeta, log_z)[None]
    assert isinstance(smoothing, Overlapping)
    return boltzmann_kl(prior, logits, zeta, smoothing, log_z)[None]


def _convolutional(
    objective: str, model: DVAE, x: Tensor, smoothing: Smoothing, log_z: Tensor | float, noise: Noise
) -> Terms:
    q = Posterior(model, model.encode(x), noise, smoothing)
    drawn = model.top_down(q, len(x))
    zeta, h = [group.value for group in drawn.zeta], [group.value for group in drawn.h]
    kl: list[Tensor] = []
    if model.prior is not None:
        kl.append(_undirected(objective, model.prior, q.global_parameters, zeta, smoothing, log_z)[0])
    elif zeta:
        latent = model.global_latent
        triples = zip(q.global_parameters, model.global_priors(), zeta, strict=True)
        kl += [latent.kl(mine, prior, value, smoothing) for mine, prior, value in triples]
    local = zip(q.local_parameters, model.local_priors(drawn), h, strict=True)
    kl += [model.local_latent.kl(mine, prior, value, smoothing) for mine, prior, value in local]
    log_likelihood = model.decoder(drawn.features, model.canvas.pad(x))
    binary = model.global_kind in ("rbm", "bernoulli")
    return Terms(log_likelihood, torch.stack(kl), q.global_parameters if binary else [])
