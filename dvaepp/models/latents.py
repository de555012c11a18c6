"""Kinds of latent variable: what the outputs of a network mean, how a group is drawn, and what its KL is.

A group has parameters (rows, channels, ...), which `parameters` makes of the outputs of a network once for all that
follows, and values (rows, units, ...).

- Training draws reparameterised samples and needs the KL given the group's parents. For normal units it is analytic.
  For smoothed Bernoulli units it is the bracket of Eq. 5 at the sample, with the gradient through the sample alone.
- Training with K samples needs log q - log p at the sample, because an importance weight has no place for an average.
- Evaluation draws z and then ζ ~ r(ζ|z), or ζ = z in the binary limit, and needs log p(z) - log q(z), since r cancels.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import binary_cross_entropy_with_logits

from dvaepp.kernels import normal
from dvaepp.models.likelihoods import normal_log_prob
from dvaepp.models.noise import BatchNoise
from dvaepp.numerics import widened
from dvaepp.objectives.marginal import bracket
from dvaepp.smoothing.base import Overlapping, Smoothing


class Drawn(NamedTuple):
    """The value of a group that networks read, and the one that importance weights score.

    These are ζ and z where units are binary, and both are h where units are normal.
    """

    value: Tensor
    scored: Tensor


class Latent(ABC):
    parameters_per_unit: int
    smoothed: bool
    """Whether its units are binary, and smoothed in training."""

    @abstractmethod
    def parameters(self, outputs: Tensor) -> Tensor:
        """The parameters of a group from the outputs of its network."""

    @abstractmethod
    def sample(self, parameters: Tensor, noise: BatchNoise, smoothing: Smoothing) -> Tensor:
        """A reparameterised sample for training."""

    @abstractmethod
    def kl(self, q: Tensor, p: Tensor, value: Tensor, smoothing: Smoothing) -> Tensor:
        """An unbiased sample of KL(q || p) given the parents' sample, (rows,), whose gradient is unbiased too."""

    @abstractmethod
    def log_ratio(self, q: Tensor, p: Tensor, value: Tensor, smoothing: Smoothing) -> Tensor:
        """log q - log p at the sample, (rows,), with its whole gradient: the group's part of an importance weight."""

    def term(self, weights: bool) -> Callable[[Tensor, Tensor, Tensor, Smoothing], Tensor]:
        """What a group adds to a bound: its KL, or its part of an importance weight."""
        return self.log_ratio if weights else self.kl

    @abstractmethod
    def draw(self, parameters: Tensor, noise: BatchNoise, smoothing: Smoothing | None) -> Drawn:
        """An exact draw; `smoothing` None is the binary limit."""

    @abstractmethod
    def log_prob(self, parameters: Tensor, scored: Tensor) -> Tensor:
        """log of the density of normal units, of the probability of z for binary ones, (rows,)."""


class Normal(Latent):
    """Channels are means and log standard deviations, each bounded as 5 tanh(v / 5) for an output v."""

    parameters_per_unit = 2
    smoothed = False

    def parameters(self, outputs: Tensor) -> Tensor:
        return normal.bounded(widened(outputs), BOUND)

    def sample(self, parameters: Tensor, noise: BatchNoise, smoothing: Smoothing | None) -> Tensor:
        return normal.sample(parameters, noise.normal_like(parameters.chunk(2, 1)[0]))

    def kl(self, q: Tensor, p: Tensor, value: Tensor, smoothing: Smoothing) -> Tensor:
        return normal.kl(q, p)

    def log_ratio(self, q: Tensor, p: Tensor, value: Tensor, smoothing: Smoothing) -> Tensor:
        return self.log_prob(q, value) - self.log_prob(p, value)

    def draw(self, parameters: Tensor, noise: BatchNoise, smoothing: Smoothing | None) -> Drawn:
        value = self.sample(parameters, noise, smoothing)
        return Drawn(value, value)

    def log_prob(self, parameters: Tensor, scored: Tensor) -> Tensor:
        return normal_log_prob(scored, *parameters.chunk(2, 1)).flatten(1).sum(1)


class Bernoulli(Latent):
    """Channels are logits; training smooths the units and takes the marginal KL (Eq. 5)."""

    parameters_per_unit = 1
    smoothed = True

    def parameters(self, outputs: Tensor) -> Tensor:
        return outputs

    def sample(self, parameters: Tensor, noise: BatchNoise, smoothing: Smoothing) -> Tensor:
        return smoothing.draw(parameters, noise.uniform(*parameters.shape))

    def kl(self, q: Tensor, p: Tensor, value: Tensor, smoothing: Smoothing) -> Tensor:
        assert isinstance(smoothing, Overlapping)
        return bracket(q, p, value, smoothing, path_only=True).flatten(1).sum(1)

    def log_ratio(self, q: Tensor, p: Tensor, value: Tensor, smoothing: Smoothing) -> Tensor:
        assert isinstance(smoothing, Overlapping)
        return bracket(q, p, value, smoothing, path_only=False).flatten(1).sum(1)

    def draw(self, parameters: Tensor, noise: BatchNoise, smoothing: Smoothing | None) -> Drawn:
        parameters = widened(parameters)
        z = (noise.uniform(*parameters.shape) < torch.sigmoid(parameters)).to(parameters.dtype)
        return Drawn(z if smoothing is None else smoothed(z, smoothing, noise.uniform(*z.shape)), z)

    def log_prob(self, parameters: Tensor, scored: Tensor) -> Tensor:
        cost = binary_cross_entropy_with_logits(widened(parameters), widened(scored), reduction="none")
        return -cost.flatten(1).sum(1)


def smoothed(z: Tensor, smoothing: Smoothing, rho: Tensor) -> Tensor:
    """ζ ~ r(ζ|z): a unit that is certain to be z has an infinite logit, and its mixture is r(ζ|z) alone."""
    return smoothing.draw((z - 0.5) * torch.inf, rho)


BOUND = 5.0
LATENTS: dict[str, Latent] = {"normal": Normal(), "bernoulli": Bernoulli()}
