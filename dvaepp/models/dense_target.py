"""A model of dense networks as gradient estimators see it: log p(x, z) and the posterior's logits for one batch."""

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor, nn
from torch.nn.functional import softplus

from dvaepp.numerics import widened
from dvaepp.priors.base import BoltzmannPrior
from dvaepp.priors.directed import Directed
from dvaepp.priors.family import DirectedPrior, Prior


@runtime_checkable
class Estimable(Protocol):
    """What is asked of the model."""

    group_sizes: list[int]
    encoders: nn.ModuleList
    prior: Prior

    def context(self, x: Tensor) -> Tensor: ...

    def likelihood_parameters(self, zeta: Sequence[Tensor]) -> Tensor: ...


class DenseTarget:
    """x (batch, pixels). Everything is differentiable twice, which REBAR and RELAX need."""

    def __init__(self, model: Estimable, x: Tensor) -> None:
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
            return log_p - self.model.prior.energy(torch.cat(list(z), -1))  # log Z: see `log_z_surrogate`
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
    """Linear in the value, which may be relaxed."""
    logits = widened(logits)
    return (value * logits - softplus(logits)).sum(-1)
