"""What a gradient estimator needs of a model with dense networks: log p(x, z) and the posterior's logits."""

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn.functional import softplus

from dvaepp.models.binary_vae import BinaryVAE
from dvaepp.numerics import widened
from dvaepp.priors.base import BoltzmannPrior
from dvaepp.priors.directed import Directed
from dvaepp.priors.family import DirectedPrior


class DenseTarget:
    """A model and its images x (batch, pixels) as the target of an estimator (`dvaepp.estimators.RelaxedTarget`).

    All of it can be differentiated twice, as REBAR and RELAX do.
    """

    def __init__(self, model: BinaryVAE, x: Tensor) -> None:
        self.model, self.x = model, x
        self.num_layers = len(model.group_sizes)
        self.context = model.context(x)

    def logits(self, z: Sequence[Tensor]) -> Tensor:
        inputs = self.context
        if z:
            inputs = torch.cat([inputs.expand(*z[0].shape[:-1], -1), *z], -1)
        return widened(self.model.encoders[len(z)](inputs))

    def log_joint(self, z: Sequence[Tensor]) -> Tensor:
        log_p = self.log_likelihood(z)
        if isinstance(self.model.prior, BoltzmannPrior):
            # log Z does not depend on z; its gradient comes from `log_z_surrogate`.
            return log_p - self.model.prior.energy(torch.cat(list(z), -1))
        for value, logits in zip(z, self.prior_logits(z), strict=True):
            log_p = log_p + _log_bernoulli(value, logits)
        return log_p

    def log_likelihood(self, z: Sequence[Tensor]) -> Tensor:
        return _log_bernoulli(self.x, self.model.likelihood_parameters([torch.cat(list(z), -1)]))

    def prior_logits(self, z: Sequence[Tensor]) -> list[Tensor]:
        assert isinstance(self.model.prior, DirectedPrior)
        if not isinstance(self.model.prior, Directed):
            return self.model.prior.logits(z)
        later = [net(torch.cat(list(z[: a + 1]), -1)) for a, net in enumerate(self.model.prior.networks)]
        return [self.model.prior.first_logits, *later]


def _log_bernoulli(value: Tensor, logits: Tensor) -> Tensor:
    """log p of a value, (...); the formula is linear in the value, so it also takes relaxed ones between 0 and 1."""
    logits = widened(logits)
    return (value * logits - softplus(logits)).sum(-1)
