"""p(x) of each pixel from a network's output channels: Bernoulli, or a mixture of discretized logistics (Sec. 6.1)."""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Literal

import torch
from torch import Tensor
from torch.nn.functional import binary_cross_entropy_with_logits

from dvaepp.distributions.logistic_mixture import DiscretizedLogisticMixture
from dvaepp.errors import UsageError
from dvaepp.kernels import bernoulli
from dvaepp.numerics import uniform, widened

MIXTURES = 10  # App. G: 100 output channels
LEAST_LOG_SD = -7.0  # as in the logistic mixture; without a bound the density could grow beyond any KL
HALF_LOG_2PI = 0.9189385332046727


class Likelihood(ABC):
    """p(x) of images (rows, `channels`, height, width), of which a network gives `outputs` parameters per pixel."""

    channels: int
    outputs: int
    reads: Literal["bernoulli", "logistic_mixture", "gaussian"]
    """How data is read for it: as binary images, as 256 levels in [-1, 1], or as plain numbers."""

    @abstractmethod
    def log_prob(self, parameters: Tensor, x: Tensor) -> Tensor:
        """log p of each pixel, (rows, height, width)."""

    @abstractmethod
    def sample(self, parameters: Tensor, generator: torch.Generator | None) -> Tensor:
        """Draw pixels (rows, channels, height, width)."""

    def shaped(self, parameters: Tensor, image_shape: Sequence[int]) -> Tensor:
        """A decoder's output as (rows, outputs, height, width); what does not fit is refused."""
        expected = (self.outputs, *image_shape[1:])
        remedy = f"and this likelihood takes {expected}, in that or any shape of as many numbers"
        return _reshaped(parameters, expected, f"images {tuple(image_shape)}, {remedy}")

    def check(self, parameters: Tensor, x: Tensor) -> None:
        """Refuse a decoder's output that does not fit x; called once, before the first step."""
        self.shaped(parameters, x.shape[1:])
        self.total(parameters, x)

    def total(self, parameters: Tensor, x: Tensor) -> Tensor:
        """log p(x) of whole images, (rows,), from a decoder's output."""
        return self.log_prob(self.shaped(parameters, x.shape[1:]), x).flatten(1).sum(1)

    @abstractmethod
    def mean(self, parameters: Tensor) -> Tensor:
        """The mean of each pixel, for pictures."""

    def shown(self, x: Tensor) -> Tensor:
        """Pixels as a picture shows them, from black at 0 to white at 1."""
        return x


class BernoulliPixels(Likelihood):
    channels = outputs = 1
    reads = "bernoulli"

    def log_prob(self, parameters: Tensor, x: Tensor) -> Tensor:
        return -binary_cross_entropy_with_logits(widened(parameters), widened(x), reduction="none").squeeze(1)

    def shaped(self, parameters: Tensor, image_shape: Sequence[int]) -> Tensor:
        """Logits of as many numbers as the image has, in any shape."""
        remedy = f"a Bernoulli likelihood takes one logit for each of their {math.prod(image_shape)} pixels"
        return _reshaped(parameters, image_shape, f"images {tuple(image_shape)}: {remedy}")

    def total(self, parameters: Tensor, x: Tensor) -> Tensor:
        return bernoulli.log_prob(x.flatten(1), parameters.flatten(1))

    def sample(self, parameters: Tensor, generator: torch.Generator | None) -> Tensor:
        noise = uniform(*parameters.shape, generator=generator, dtype=parameters.dtype, device=parameters.device)
        return (noise < torch.sigmoid(widened(parameters))).to(parameters.dtype)

    def mean(self, parameters: Tensor) -> Tensor:
        return torch.sigmoid(parameters)


class LogisticMixturePixels(Likelihood):
    """Pixels in colour, whose 100 outputs are those of App. G."""

    channels = 3
    outputs = 10 * MIXTURES
    reads = "logistic_mixture"

    def log_prob(self, parameters: Tensor, x: Tensor) -> Tensor:
        return self._mixture(parameters).log_prob(x.permute(0, 2, 3, 1))

    def sample(self, parameters: Tensor, generator: torch.Generator | None) -> Tensor:
        return self._mixture(parameters).sample(generator=generator).permute(0, 3, 1, 2)

    def mean(self, parameters: Tensor) -> Tensor:
        """The mean over components of their means, which are clipped to the range of pixels.

        The mean of a later channel depends on the earlier channels, for which their own means are taken.
        """
        mixture = self._mixture(parameters)
        weights = torch.softmax(mixture.mixture_logits, -1)
        return torch.stack([(weights * channel).sum(-1) for channel in self._means(mixture)], 1)

    def shown(self, x: Tensor) -> Tensor:
        return (x + 1) / 2

    def _means(self, mixture: DiscretizedLogisticMixture) -> list[Tensor]:
        assert mixture.coefficients is not None
        c = torch.tanh(mixture.coefficients)
        red = mixture.means[..., 0, :].clamp(-1, 1)
        green = (mixture.means[..., 1, :] + c[..., 0, :] * red).clamp(-1, 1)
        blue = (mixture.means[..., 2, :] + c[..., 1, :] * red + c[..., 2, :] * green).clamp(-1, 1)
        return [red, green, blue]

    def _mixture(self, parameters: Tensor) -> DiscretizedLogisticMixture:
        return DiscretizedLogisticMixture.from_channels(widened(parameters), validate_args=False)


class GreyMixturePixels(LogisticMixturePixels):
    """Grey pixels of 256 levels: one channel, and no coefficients between channels."""

    channels = 1
    outputs = 3 * MIXTURES

    def _means(self, mixture: DiscretizedLogisticMixture) -> list[Tensor]:
        return [mixture.means[..., 0, :].clamp(-1, 1)]

    def _mixture(self, parameters: Tensor) -> DiscretizedLogisticMixture:
        return DiscretizedLogisticMixture.from_channels(widened(parameters), validate_args=False, grey=True)


class GaussianPixels(Likelihood):
    """Real numbers: a network gives a mean and a log standard deviation for each, the means first."""

    reads = "gaussian"

    def shaped(self, parameters: Tensor, image_shape: Sequence[int]) -> Tensor:
        """(rows, 2, numbers of x): means and log standard deviations, which are kept above `LEAST_LOG_SD`."""
        n = math.prod(image_shape)
        remedy = f"a Gaussian likelihood takes {2 * n} numbers, a mean and a log standard deviation for each of {n}"
        both = _reshaped(parameters, (2, *image_shape), f"x of shape {tuple(image_shape)}: {remedy}")
        mean, log_sd = both.unbind(1)
        return torch.stack([mean, log_sd.clamp_min(LEAST_LOG_SD)], 1)

    def log_prob(self, parameters: Tensor, x: Tensor) -> Tensor:
        mean, log_sd = parameters.unbind(1)
        return normal_log_prob(x, mean, log_sd)

    def sample(self, parameters: Tensor, generator: torch.Generator | None) -> Tensor:
        mean, log_sd = parameters.unbind(1)
        noise = torch.randn(mean.shape, generator=generator, dtype=mean.dtype, device=mean.device)
        return mean + log_sd.exp() * noise

    def mean(self, parameters: Tensor) -> Tensor:
        return parameters[:, 0]


class OwnLikelihood(Likelihood):
    """A user's function of the decoder's output and x, which returns log p(x), (rows,).

    Where the decoder gives as many numbers as an image has, they are shown as the mean image.
    """

    reads = "gaussian"

    def __init__(self, function: Callable[[Tensor, Tensor], Tensor]) -> None:
        self.function = function

    def shaped(self, parameters: Tensor, image_shape: Sequence[int]) -> Tensor:
        remedy = "give BinaryVAE a subclass of dvaepp.models.likelihoods.Likelihood, whose mean makes images of that"
        return _reshaped(parameters, image_shape, f"images {tuple(image_shape)}: {remedy}")

    def check(self, parameters: Tensor, x: Tensor) -> None:
        found = self.total(parameters, x)
        if found.shape != (len(x),):
            raise UsageError(f"the likelihood gives {tuple(found.shape)} for {len(x)} rows; expected ({len(x)},)")

    def total(self, parameters: Tensor, x: Tensor) -> Tensor:
        return self.function(parameters, x)

    def log_prob(self, parameters: Tensor, x: Tensor) -> Tensor:
        return self.function(parameters, x)

    def sample(self, parameters: Tensor, generator: torch.Generator | None) -> Tensor:
        return parameters

    def mean(self, parameters: Tensor) -> Tensor:
        return parameters


def _reshaped(parameters: Tensor, shape: Sequence[int], refusal: str) -> Tensor:
    """A decoder's output as (rows, *shape), or the refusal of another number of parameters."""
    if math.prod(parameters.shape[1:]) != math.prod(shape):
        raise UsageError(f"the decoder gives {tuple(parameters.shape[1:])} for {refusal}")
    return parameters.reshape(len(parameters), *shape)


def normal_log_prob(x: Tensor, mean: Tensor, log_sd: Tensor) -> Tensor:
    """The log density of each number x under a normal distribution."""
    return -0.5 * ((x - mean) * torch.exp(-log_sd)) ** 2 - log_sd - HALF_LOG_2PI


LIKELIHOODS: dict[str, tuple[Likelihood, ...]] = {
    "bernoulli": (BernoulliPixels(),),
    "logistic_mixture": (GreyMixturePixels(), LogisticMixturePixels()),
}
"""The likelihoods that a recipe may name, each in a form for every number of channels that it takes."""


def likelihood(name: str, channels: int) -> Likelihood:
    """The likelihood of this name for images with so many channels."""
    for each in LIKELIHOODS[name]:
        if each.channels == channels:
            return each
    taken = " or ".join(str(each.channels) for each in LIKELIHOODS[name])
    raise UsageError(f"a {name} likelihood takes images of {taken} channels, got {channels}")


Own = str | Likelihood | Callable[[Tensor, Tensor], Tensor]
"""A likelihood by name, as an object, or as a function (parameters, x) -> log p(x) of each row."""


def own(spec: Own, sample_shape: Sequence[int]) -> Likelihood:
    """The likelihood that a user's model asks for, for x of this shape."""
    if isinstance(spec, Likelihood):
        return spec
    if not isinstance(spec, str):
        return OwnLikelihood(spec)
    names = ("bernoulli", "logistic_mixture", "gaussian")
    if spec not in names:
        raise UsageError(f"likelihood is {spec[:40]!r}; expected {', '.join(names)}, or a function of parameters and x")
    if spec == "logistic_mixture":
        return likelihood(spec, sample_shape[0])
    return BernoulliPixels() if spec == "bernoulli" else GaussianPixels()
