"""Which units matter, by three measures over images x:

kl         mean of KL(q(z_i|x) ‖ p(z_i)), in nats: what the unit tells of an image. p(z_i) is the prior's marginal,
           from samples of it; the units of a Boltzmann prior are not independent, so this does not add up to its KL
activity   variance of q(z_i=1|x): a unit that is the same for all images says nothing
energy     mean energy that flipping the unit costs, in nats: how firmly the prior and the other units hold it
"""

from typing import Any

import torch
from torch import Tensor

from dvaepp.models.trained import Trained
from dvaepp.training.validation import ACTIVE_VARIANCE
from dvaepp.viewer.walk import flip_energies

PRIOR_SAMPLES = 64


@torch.no_grad()
def measures(trained: Trained, x: Tensor, p: Tensor) -> dict[str, Any]:
    """Of every unit, measured on images x as the model takes them, with the prior's `marginals` p."""
    mu, prior = trained.code_means(x).double(), trained.model.boltzmann
    activity = mu.var(0) if len(x) > 1 else torch.zeros_like(mu[0])
    cost = None if prior is None else flip_energies(prior, trained.encode(x)).mean(0).tolist()
    return {
        "kl": _kl(mu, p).mean(0).tolist(),
        "activity": activity.tolist(),
        "energy": cost,
        "active": int((activity > ACTIVE_VARIANCE).sum()),
        "images": len(x),
    }


@torch.no_grad()
def marginals(trained: Trained, generator: torch.Generator) -> Tensor:
    """p(z_i = 1) from samples: of a Boltzmann prior the mean conditional probability, which has less noise."""
    z, prior = trained.sample_code(PRIOR_SAMPLES, generator), trained.model.boltzmann
    if prior is not None:
        return torch.sigmoid(prior.conditional_logits(z, slice(None)).double()).mean(0)
    return (z.double().sum(0) + 0.5) / (len(z) + 1)  # never 0 or 1


def _kl(q: Tensor, p: Tensor) -> Tensor:
    return torch.xlogy(q, q / p) + torch.xlogy(1 - q, (1 - q) / (1 - p))
