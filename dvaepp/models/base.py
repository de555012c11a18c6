"""The protocol of a model: what training, evaluation, sampling and reporting ask of any of them.

A model has global units z in groups, whose posterior is q(z, ζ|x) = Π_a q(z_a|x, ζ_<a) r(ζ_a|z_a), a prior, and a
decoder. It may have further latents, which only the model itself knows of. A model states

    terms         log p(x|ζ) and the KL of each group for a batch: what training maximises
    log_weights   log p(x, z) - log q(z|x) of importance samples: what evaluation averages
    encode        the code of images
    decode        images of a code
    sample_code   codes of the prior (given here for Boltzmann priors)

and a few facts: the shape of its images, the sizes of its groups, the names of its KL terms. Nothing outside this
folder asks which class a model is.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, Literal, NamedTuple

import torch
from torch import Tensor, nn

from dvaepp.errors import UsageError
from dvaepp.estimators.base import RelaxedTarget
from dvaepp.models.inpainting import Latents
from dvaepp.models.noise import BatchNoise
from dvaepp.models.summary import Row, count, modules
from dvaepp.priors.base import BoltzmannPrior
from dvaepp.smoothing.base import Smoothing

Smoothings = Smoothing | Sequence[Smoothing]
"""One smoothing for all groups of binary units or one for each: global groups first, then local ones."""

LogWeights = Callable[[int], Tensor]
"""Called with k: log weights of the next k samples of every image, (k, batch), up to the log Z of a Boltzmann prior."""


class Terms(NamedTuple):
    """The parts of a bound: log p(x|ζ, h) (batch,), KL (groups, batch), and the logits of the binary global groups.

    A Boltzmann prior has one row of KL for all its units. Choose it as the result of `terms` in a model of your own.

    >>> Terms(torch.zeros(2), torch.zeros(1, 2), [torch.zeros(2, 8)]).kl.shape
    torch.Size([1, 2])
    """

    log_likelihood: Tensor
    kl: Tensor
    logits: list[Tensor]


class Model(nn.Module, ABC):
    """A generative model with a code, for images (batch, channels, height, width).

    Choose it as the base of a model that is no `BinaryVAE`: what keeps to this protocol can be trained, evaluated,
    loaded and reported. CONTRIBUTING.md shows a subclass.

    >>> sorted(Model.__abstractmethods__)
    ['decode', 'encode', 'log_weights', 'terms']
    """

    image_shape: tuple[int, ...]
    group_sizes: list[int]
    """Units of each group of the code; empty where there is no code."""

    binary_code: bool = True
    """Whether the code is made of bits, as `encode` and `decode` of a trained model promise."""
    images_per_code: int = 1
    """How many images a picture of samples shows of each code; more than one where other latents vary below it."""
    rows_at_once: ClassVar[int] = 400
    """How many samples times images evaluation holds in memory at a time."""
    samples_in_chunk: ClassVar[int] = 1
    """Evaluation asks for samples in multiples of this number, except at the end."""
    former_names: ClassVar[Mapping[str, str]] = {}
    """For names of tensors that have changed: how they begin now, and how they began in older checkpoints."""

    @property
    def sample_shape(self) -> tuple[int, ...]:
        """The shape of one x as the networks take it; pictures show the same numbers in the shape `image_shape`."""
        return self.image_shape

    @property
    def reads(self) -> Literal["bernoulli", "logistic_mixture", "gaussian"]:
        """How data is read for the model: as binary images, as 256 levels in [-1, 1], or as plain numbers."""
        return "bernoulli"

    @property
    def num_units(self) -> int:
        return sum(self.group_sizes)

    @property
    def device(self) -> torch.device:
        return next(self.parameters()).device

    @property
    def dtype(self) -> torch.dtype:
        return next(self.parameters()).dtype

    @property
    def boltzmann(self) -> BoltzmannPrior | None:
        """The prior whose log Z is estimated and which training keeps chains of; None where p(z) is normalised."""
        return None

    @property
    def num_smoothed_groups(self) -> int:
        """Groups of binary units, for each of which a smoothing may be given."""
        return len(self.group_sizes)

    def prepare(self, sample_shape: Sequence[int], image_shape: Sequence[int]) -> None:
        """Refuse data of a shape that the model is not made for; called before training and loading."""
        if tuple(sample_shape) != self.sample_shape:
            raise UsageError(f"this model takes x of shape {self.sample_shape}, and the data has {tuple(sample_shape)}")

    @abstractmethod
    def terms(
        self,
        x: Tensor,
        smoothing: Smoothings,
        noise: BatchNoise,
        *,
        objective: str,
        log_z: Tensor | float = 0.0,
        weights: bool = False,
    ) -> Terms:
        """One sample of each term of the bound for images x; `log_z` as for `boltzmann_kl`.

        With `weights` the terms are to be parts of importance weights. Then each KL is log q - log p at the sample, not
        an expectation, and its gradient has both parts, that through the sample and that of the density.
        """

    @abstractmethod
    def log_weights(
        self, x: Tensor, smoothing: Smoothings | None = None, generator: torch.Generator | None = None
    ) -> LogWeights:
        """A source of log w = log p(x|ζ) p(z) / q(z|x), z ~ q; `smoothing` None is the binary limit ζ = z.

        What depends on x alone is computed in this call, so that the function returned need not do it for each sample.
        """

    @abstractmethod
    def encode(self, x: Tensor) -> Tensor:
        """The most likely value of every unit in turn, (batch, units)."""

    def code_means(self, x: Tensor) -> Tensor:
        """q(z_i = 1|x, the most likely earlier groups) of every binary unit, (batch, units): how certain a code is.

        A model that does not override this takes its code to be certain.
        """
        return self.encode(x)

    @abstractmethod
    def decode(self, code: Tensor, generator: torch.Generator | None = None, mean: bool = True) -> Tensor:
        """Images of codes (batch, units); latents below the code are drawn from their prior.

        `mean` shows every pixel's mean where pixels are independent, otherwise they are drawn.
        """

    def reconstruct(self, x: Tensor, generator: torch.Generator | None = None, mean: bool = True) -> Tensor:
        """Images given the latents of x."""
        return self.decode(self.encode(x), generator, mean)

    def shown(self, images: Tensor) -> Tensor:
        """Images as a picture shows them, from black at 0 to white at 1."""
        return images

    def sample_code(self, n: int, generator: torch.Generator | None = None) -> Tensor:
        """Codes of the prior, (n, units)."""
        if self.boltzmann is None:
            raise NotImplementedError(f"{type(self).__name__} must say how its prior is sampled")
        return self.boltzmann.sample(n, generator)

    def draw_latents(self, x: Tensor, generator: torch.Generator | None) -> Latents:
        """ℓ ~ q(ℓ|x) in the binary limit. Only `inpainting` asks for this method and the next four."""
        raise UsageError(f"{type(self).__name__} cannot complete images: it does not say how its latents are drawn")

    def latent_log_weight(self, x: Tensor, latents: Latents) -> Tensor:
        """log p(ℓ) p(x|ℓ) / q(ℓ|x), (rows,), up to log Z."""
        raise UsageError(f"{type(self).__name__} cannot complete images: it does not weigh its latents")

    def redraw(self, x: Tensor, seen: Tensor, latents: Latents, generator: torch.Generator | None) -> Tensor:
        """x with its hidden pixels drawn; a decoder whose pixels depend on each other takes the seen ones as given."""
        drawn = self.decode(torch.cat(latents, -1), generator, mean=False)
        return torch.where(seen, x, drawn.reshape(x.shape))

    def log_seen(self, x: Tensor, seen: Tensor, latents: Latents) -> Tensor:
        """log s(x) of `models/inpainting.py`, (rows,); 0 where pixels are independent given ℓ."""
        return x.new_zeros(len(x))

    def expected_pixels(self, x: Tensor, latents: Latents) -> Tensor:
        """The mean of each pixel given ℓ."""
        return self.decode(torch.cat(latents, -1)).reshape(x.shape)

    def kl_names(self) -> list[str]:
        """Names of the rows of `Terms.kl`: a Boltzmann prior has one for all its units."""
        return ["z"] if self.boltzmann is not None else [f"z{a + 1}" for a in range(len(self.group_sizes))]

    def summary(self) -> list[Row]:
        """The model's modules, what they end at and their parameters; the last row is the sum."""
        return [*modules(self), Row("total", "", "", count(self))]

    def target(self, x: Tensor) -> RelaxedTarget:
        """The model as gradient estimators see it for images x (Sec. 7.1)."""
        raise UsageError(f"gradient estimators train feed-forward models; {type(self).__name__} needs a smoothing")

    def load_state_dict(self, state_dict: Mapping[str, Any], *args: Any, **kwargs: Any) -> Any:
        """Load weights, also under the names that they have in older checkpoints."""
        names = {self.former_name(name): name for name in self.state_dict()}
        return super().load_state_dict({names.get(k, k): v for k, v in state_dict.items()}, *args, **kwargs)

    def check_weights(self, weights: Mapping[str, Tensor]) -> None:
        """Refuse the weights of another architecture, naming the first tensor that differs and both shapes."""
        own = {name: tuple(value.shape) for name, value in self.state_dict().items()}
        names = {self.former_name(name): name for name in own}
        given = {names.get(name, name): tuple(value.shape) for name, value in weights.items()}
        wrong = [name for name in {**own, **given} if own.get(name) != given.get(name)]
        if wrong:
            here, there = (found.get(wrong[0], "missing") for found in (own, given))
            more = f" ({len(wrong)} tensors differ)" if len(wrong) > 1 else ""
            raise UsageError(f"the run holds another architecture: {wrong[0]} is {there} there and {here} here{more}")

    def former_name(self, name: str) -> str:
        """The name of a tensor in older checkpoints."""
        for now, before in self.former_names.items():
            if name.startswith(now):
                return before + name.removeprefix(now)
        return name
