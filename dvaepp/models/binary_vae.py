"""Groups of binary units around anybody's networks: hierarchical posterior, Boltzmann or directed prior, decoder.

q(z, ζ|x) = Π_a q(z_a|x, ζ_<a) r(ζ_a|z_a),   p(x, ζ, z) = p(z) Π r(ζ|z) p(x|ζ)
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import torch
from torch import Tensor, nn

from dvaepp.kernels import bernoulli
from dvaepp.models.base import LogWeights, Model, Smoothings, Terms
from dvaepp.models.dry_run import check_parts, dry_run
from dvaepp.models.inpainting import Latents
from dvaepp.models.latents import smoothed
from dvaepp.models.likelihoods import Likelihood, Own, own
from dvaepp.models.noise import BatchNoise, repeated
from dvaepp.models.summary import Row, count
from dvaepp.numerics import widened
from dvaepp.objectives.prior_kl import prior_kl
from dvaepp.priors.base import BoltzmannPrior
from dvaepp.priors.family import Prior
from dvaepp.smoothing.binary import Binary
from dvaepp.smoothing.groups import for_groups

if TYPE_CHECKING:
    Encoders = Sequence[nn.Module]
    Network = nn.Module
    AnyPrior = Prior
else:
    Encoders = Network = AnyPrior = Any  # so that `check_parts` refuses other things, naming what is expected


class Groups(NamedTuple):
    """Per group a: logits of q(z_a|x, ζ_<a) and the sample ζ_a, each (..., units)."""

    logits: list[Tensor]
    zeta: list[Tensor]


class BinaryVAE(Model):
    """Groups of binary units around networks of one's own.

    Choose it to train your encoders and decoder with any prior of the library, through `dvaepp.train`.

    `encoders[a](x, *zeta_before)` takes x in the data's shape and one tensor (rows, units) per earlier group, and
    returns logits (rows, units) of group a. `decoder(zeta)` takes all groups side by side, (rows, units), and returns
    the likelihood's parameters: for "bernoulli" logits, "gaussian" means and then log standard deviations, each in any
    shape of as many numbers; for "logistic_mixture" 100 channels per colour pixel, 30 per grey one. A function of
    (parameters, x) that returns log p(x) of each row (rows,) is a likelihood, too. `prior` is any member of
    `dvaepp.priors`. Shapes are checked by a dry run when the data is known (`prepare`), before the first step.

    >>> encoder = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(784, 64))
    >>> model = BinaryVAE([encoder], torch.nn.Linear(64, 784), dvaepp.priors.RBM(32, 32))
    """

    encoders: nn.ModuleList
    decoder: nn.Module
    prior: Prior

    def __init__(
        self,
        encoders: Encoders,
        decoder: Network,
        prior: AnyPrior,
        likelihood: Own = "bernoulli",
        *,
        image_shape: Sequence[int] | None = None,
        group_sizes: Sequence[int] | None = None,
    ) -> None:
        super().__init__()
        check_parts(encoders, decoder, prior)
        self.image_shape = () if image_shape is None else tuple(image_shape)
        self.group_sizes = [] if group_sizes is None else list(group_sizes)
        self._sample_shape = self.image_shape
        self.encoders, self.decoder, self.prior = nn.ModuleList(encoders), decoder, prior
        self.likelihood_spec = likelihood
        self._likelihood: Likelihood | None = None

    @property
    def sample_shape(self) -> tuple[int, ...]:
        return self._sample_shape

    @property
    def likelihood(self) -> Likelihood:
        if self._likelihood is None:
            self._likelihood = own(self.likelihood_spec, self.sample_shape)
        return self._likelihood

    @property
    def reads(self) -> Literal["bernoulli", "logistic_mixture", "gaussian"]:
        # Before the shape of the data is known any number of channels will do: it does not change how data is read.
        return own(self.likelihood_spec, self.sample_shape or (1,)).reads

    def prepare(self, sample_shape: Sequence[int], image_shape: Sequence[int]) -> None:
        """Learn the sizes of the groups from a dry run, or refuse networks that do not fit this data or each other."""
        if self.image_shape and tuple(sample_shape) != self.sample_shape:
            super().prepare(sample_shape, image_shape)
        self._sample_shape, self.image_shape = tuple(sample_shape), tuple(image_shape)
        self.group_sizes = dry_run(self, self.group_sizes)

    @property
    def boltzmann(self) -> BoltzmannPrior | None:
        return self.prior if isinstance(self.prior, BoltzmannPrior) else None

    def context(self, x: Tensor) -> Tensor:
        """What the encoders read in place of x; a subclass may centre or flatten it."""
        return x

    def likelihood_parameters(self, zeta: Sequence[Tensor]) -> Tensor:
        """Parameters of p(x|ζ)."""
        parameters: Tensor = self.decoder(torch.cat(list(zeta), -1))
        return parameters

    def posterior(self, x: Tensor, rho: Sequence[Tensor], smoothing: Smoothings, copies: int = 1) -> Groups:
        """Sample the groups in turn, with `rho` (rows, units) for each, and one smoothing for all or one for each.

        With K importance samples the rows of x are K `copies` of the batch, one after another. Every copy of an image
        has the same logits of the first group, which are therefore computed once.
        """
        context = self.context(x[: len(x) // copies])
        logits: list[Tensor] = []
        zeta: list[Tensor] = []
        for encoder, noise, each in zip(self.encoders, rho, for_groups(smoothing, len(rho)), strict=True):
            found = self.group_logits(encoder, context, zeta, copies) if zeta else repeated(encoder(context), copies)
            logits.append(widened(found))
            zeta.append(each.draw(logits[-1], noise))
        return Groups(logits, zeta)

    def group_logits(self, encoder: Network, context: Tensor, before: Sequence[Tensor], copies: int) -> Tensor:
        """Logits of q(z_a|x, ζ_<a), given the context of the batch, and ζ_<a of each of its copies."""
        logits: Tensor = encoder(repeated(context, copies), *before)
        return logits

    def log_likelihood(self, x: Tensor, zeta: Sequence[Tensor]) -> Tensor:
        """log p(x|ζ), (batch,)."""
        return self.likelihood.total(self.likelihood_parameters(zeta), x)

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
        rho = [noise.uniform(len(x), size) for size in self.group_sizes]
        logits, zeta = self.posterior(x, rho, smoothing, noise.copies)
        kl = prior_kl(objective, self.prior, logits, zeta, smoothing, log_z, path_only=not weights)
        return Terms(self.log_likelihood(x, zeta), kl, logits)

    def log_weights(
        self, x: Tensor, smoothing: Smoothings | None = None, generator: torch.Generator | None = None
    ) -> LogWeights:
        noise = BatchNoise(generator, x.device, dtype=self.dtype)
        each = None if smoothing is None else for_groups(smoothing, len(self.group_sizes))
        first_logits = widened(self.encoders[0](self.context(x)))

        def draw(k: int) -> Tensor:
            images = repeated(x, k)
            context = self.context(images)
            z: list[Tensor] = []
            zeta: list[Tensor] = []
            log_q = x.new_zeros(len(images), dtype=self.dtype)
            for a, encoder in enumerate(self.encoders):
                logits = widened(encoder(context, *zeta)) if a else first_logits.repeat(k, 1)
                z.append((noise.uniform(*logits.shape) < torch.sigmoid(logits)).to(self.dtype))
                zeta.append(z[a] if each is None else smoothed(z[a], each[a], noise.uniform(*logits.shape)))
                log_q = log_q + bernoulli.log_prob(z[a], logits)
            log_p = self.prior.unnormalized_log_prob(torch.cat(z, -1), torch.cat(zeta, -1))
            log_w = self.log_likelihood(images, zeta) + log_p - log_q
            return log_w.view(k, len(x))

        return draw

    def encode(self, x: Tensor) -> Tensor:
        return torch.cat(self._most_likely(x).zeta, -1)

    def code_means(self, x: Tensor) -> Tensor:
        return torch.sigmoid(torch.cat(self._most_likely(x).logits, -1))

    def _most_likely(self, x: Tensor) -> Groups:
        half = [torch.full((len(x), size), 0.5, dtype=self.dtype, device=x.device) for size in self.group_sizes]
        return self.posterior(x, half, Binary(validate_args=False))

    def decode(self, code: Tensor, generator: torch.Generator | None = None, mean: bool = True) -> Tensor:
        parameters = self.likelihood_parameters(code.split(self.group_sizes, -1))
        parameters = self.likelihood.shaped(parameters, self.sample_shape)
        x = self.likelihood.mean(parameters) if mean else self.likelihood.sample(parameters, generator)
        return x.reshape(len(x), *self.image_shape)

    def shown(self, images: Tensor) -> Tensor:
        return self.likelihood.shown(images)

    def draw_latents(self, x: Tensor, generator: torch.Generator | None) -> Latents:
        noise = BatchNoise(generator, x.device, dtype=self.dtype)
        rho = [noise.uniform(len(x), size) for size in self.group_sizes]
        return self.posterior(x, rho, Binary(validate_args=False)).zeta

    def latent_log_weight(self, x: Tensor, latents: Latents) -> Tensor:
        context = self.context(x)
        log_w = self.log_likelihood(x, latents) + self.prior.unnormalized_log_prob(torch.cat(latents, -1))
        for a, (encoder, z) in enumerate(zip(self.encoders, latents, strict=True)):
            log_w = log_w - bernoulli.log_prob(z, encoder(context, *latents[:a]))
        return log_w

    def sample_code(self, n: int, generator: torch.Generator | None = None) -> Tensor:
        return self.prior.sample(n, generator)

    def summary(self) -> list[Row]:
        pixels = " x ".join(map(str, self.image_shape))
        encoders = zip(self.encoders, self.group_sizes, strict=True)
        return [
            *(Row(f"q(z{a + 1})", "", str(size), count(net)) for a, (net, size) in enumerate(encoders)),
            Row("p(z)", "", str(self.num_units), count(self.prior)),
            Row("p(x)", "", pixels, count(self.decoder)),
            Row("total", "", "", count(self)),
        ]
