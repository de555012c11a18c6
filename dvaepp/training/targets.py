"""The feed-forward model as gradient estimators see it: log p(x, z) and the posterior's logits for one batch."""

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn.functional import softplus

from dvaepp.models.feedforward import FeedForward


class FeedForwardTarget:
    """x (batch, pixels). Everything is differentiable twice, which REBAR and RELAX need."""

    def __init__(self, model: FeedForward, x: Tensor) -> None:
        self.model, self.x = model, x
        self.num_layers = len(model.group_sizes)
        self.context = x - model.train_mean

    def logits(self, z: Sequence[Tensor]) -> Tensor:
        inputs = self.context
        if z:
            inputs = torch.cat([inputs.expand(*z[0].shape[:-1], -1), *z], -1)
        logits: Tensor = self.model.encoders[len(z)](inputs)
        return logits

    def log_joint(self, z: Sequence[Tensor]) -> Tensor:
        log_p = self.log_likelihood(z)
        if self.model.prior is not None:
            return log_p - self.model.prior.energy(torch.cat(list(z), -1))  # log Z: see `log_z_surrogate`
        for value, logits in zip(z, self.prior_logits(z), strict=True):
            log_p = log_p + _log_bernoulli(value, logits)
        return log_p

    def log_likelihood(self, z: Sequence[Tensor]) -> Tensor:
        return _log_bernoulli(self.x, self.model.pixel_logits([torch.cat(list(z), -1)]))

    def prior_logits(self, z: Sequence[Tensor]) -> list[Tensor]:
        later = [net(torch.cat(list(z[: a + 1]), -1)) for a, net in enumerate(self.model.prior_networks)]
        return [self.model.first_logits, *later]


def _log_bernoulli(value: Tensor, logits: Tensor) -> Tensor:
    """Linear in the value, which may be relaxed."""
    return (value * logits - softplus(logits)).sum(-1)
