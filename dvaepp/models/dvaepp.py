"""DVAE++ (Sec. 6, App. G): global units z behind an RBM, groups of local convolutional units h, an image decoder.

    p(z, ζ, h, x) = p(z) Π r(ζ|z) Π_j p(h_j|h_<j, ζ) p(x|ζ, h)
    q(z, ζ, h|x)  = Π_a q(z_a|x, ζ_<a) r(ζ_a|z_a) Π_j q(h_j|x, ζ, h_<j)

`top_down` walks through all latents once and asks a source for each group: in training and evaluation the source is the
posterior, in generation the prior.
"""

from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor, nn

from dvaepp.errors import UsageError
from dvaepp.models import likelihoods
from dvaepp.models.architecture import Architecture
from dvaepp.models.base import LogWeights, Model, Smoothings, Terms
from dvaepp.models.decoder import Canvas, Decoder
from dvaepp.models.dvaepp_summary import rows
from dvaepp.models.inpainting import Latents
from dvaepp.models.latents import LATENTS, Drawn, Latent
from dvaepp.models.local import QUIET, LocalNetworks
from dvaepp.models.noise import BatchNoise, repeated
from dvaepp.models.sources import Encoded, Known, Posterior, PosteriorAt, PosteriorSource, PriorSource, Source, TopDown
from dvaepp.models.summary import Row, count
from dvaepp.networks.norm import BatchNorm
from dvaepp.networks.residual import factor, parse, residual
from dvaepp.networks.selu import Selu
from dvaepp.objectives.prior_kl import prior_kl
from dvaepp.priors.base import BoltzmannPrior
from dvaepp.priors.rbm import RBM
from dvaepp.smoothing.base import Smoothing
from dvaepp.smoothing.groups import for_groups


class DVAE(Model):
    """The model of Sec. 6; with `global_kind` "none" a learned map takes the place of the upsampled ζ (Table 8)."""

    images_per_code = 5  # Fig. 4: local units vary below a global sample

    def __init__(
        self,
        image_shape: Sequence[int],
        architecture: Architecture,
        *,
        global_kind: Literal["rbm", "bernoulli", "normal", "none"] = "rbm",
        global_units: int = 16,
        global_groups: int = 4,
        local_kind: Literal["bernoulli", "normal"] = "normal",
        local_channels: int = 32,
        local_groups: int = 16,
        conditional: bool = True,
        likelihood: Literal["bernoulli", "logistic_mixture"] = "bernoulli",
        generator: torch.Generator | None = None,
    ) -> None:
        super().__init__()
        a = architecture
        self.image_shape = tuple(image_shape)
        self.global_kind = global_kind
        self.binary_code = global_kind in ("rbm", "bernoulli")
        self.group_sizes = [] if global_kind == "none" else [global_units // global_groups] * global_groups
        self.global_latent: Latent = LATENTS["normal" if global_kind == "normal" else "bernoulli"]
        self.local_latent: Latent = LATENTS[local_kind]
        channels, height, width = self.image_shape
        self.likelihood = likelihoods.likelihood(likelihood, channels)
        if max(height, width) > a.image_size:
            raise UsageError(
                f"images of {height} x {width} do not fit this architecture: it takes up to "
                f"{a.image_size} x {a.image_size}; make them smaller with --set data.resize={a.image_size}"
            )
        self.canvas = Canvas(height, width, a.image_size, len(a.upsamples) + 1)

        def chain(inputs: int, blocks: Sequence[str]) -> nn.Sequential:
            return residual(inputs, blocks, generator)

        self.resolution = round(a.image_size * factor(a.down1))
        features = parse(a.down1[-1])[0]
        top = parse(a.down2[-1])[0] * round(self.resolution * factor(a.down2)) ** 2
        self.input_norm = BatchNorm(channels)
        self.down1, self.norm1 = chain(channels, a.down1), BatchNorm(features)
        up = parse(a.upsample[-1])[0]
        self.prior: RBM | None = None
        if self.group_sizes:
            self.down2, self.norm2 = chain(features, a.down2), BatchNorm(parse(a.down2[-1])[0])
            per_unit = self.global_latent.parameters_per_unit
            start = QUIET if global_kind == "normal" else 1.0  # binary units are bounded, normal ones are not
            self.encoders = nn.ModuleList(
                Selu(top + sum(self.group_sizes[:i]), per_unit * size, a.dense, generator, start=start)
                for i, size in enumerate(self.group_sizes)
            )
            self.upsample = chain(global_units, a.upsample)
        else:
            self.constant = nn.Parameter(torch.zeros(up, self.resolution, self.resolution, dtype=torch.float32))
        if global_kind == "rbm":
            self.prior = RBM(global_units // 2, global_units - global_units // 2)
        elif global_kind == "bernoulli":
            self.prior_parameters = nn.Parameter(torch.zeros(global_units, dtype=torch.float32))
        elif global_kind == "normal":
            self.register_buffer("prior_parameters", torch.zeros(2 * global_units, dtype=torch.float32))
        last = str(local_channels * self.local_latent.parameters_per_unit)
        self.q = LocalNetworks(features + up, local_channels, local_groups, [*a.posterior, last], generator)
        self.p = LocalNetworks(up, local_channels, local_groups, [*a.prior, last], generator)
        inputs = up + local_groups * local_channels
        heads = (a.context, a.upsamples, a.input_filters, conditional, generator)
        self.decoder = Decoder(inputs, self.resolution, self.canvas, self.likelihood, *heads)

    @property
    def boltzmann(self) -> BoltzmannPrior | None:
        return self.prior

    @property
    def num_smoothed_groups(self) -> int:
        latents = [self.global_latent] * len(self.group_sizes) + [self.local_latent] * self.p.num_groups
        return sum(latent.smoothed for latent in latents)

    def smoothings(self, smoothing: Smoothings) -> tuple[Sequence[Smoothing], Sequence[Smoothing]]:
        """A smoothing for each global and for each local group, from one for all or one for each binary group."""
        num_global, num_local = len(self.group_sizes), self.p.num_groups
        if isinstance(smoothing, Smoothing):
            return [smoothing] * num_global, [smoothing] * num_local
        smoothed = num_global if self.global_latent.smoothed else 0
        each = for_groups(smoothing, self.num_smoothed_groups)
        # Normal groups ignore the smoothing, so any one will do for them.
        return each[:smoothed] or [each[0]] * num_global, each[smoothed:] or [each[0]] * num_local

    def features(self, x: Tensor) -> Encoded:
        """The features of images that the posterior of the global and of the local units reads."""
        features = self.norm1(self.down1(self.input_norm(self.canvas.pad(x))))
        top = self.norm2(self.down2(features)).flatten(1) if self.group_sizes else features.flatten(1)
        return Encoded(top, self.q.given(features))

    def posterior_parameters(self, encoded: Encoded, before: Sequence[Tensor]) -> Tensor:
        """The parameters of q(z_a|x, ζ_<a), where `before` holds ζ_<a."""
        return self.global_latent.parameters(self.encoders[len(before)](torch.cat([encoded.top, *before], 1)))

    def top_down(self, source: Source, rows: int) -> TopDown:
        """Draw all latents in their order, each from the source, given those before it."""
        zeta: list[Drawn] = []
        for _ in self.group_sizes:
            zeta.append(source.global_group([group.value for group in zeta]))
        up = self.scaled_up([group.value for group in zeta], rows)
        h: list[Drawn] = []
        for _ in range(self.p.num_groups):
            h.append(source.local_group(up, [group.value for group in h]))
        return TopDown(zeta, up, h, self.p.side_by_side(up, [group.value for group in h]))

    def scaled_up(self, zeta: Sequence[Tensor], rows: int) -> Tensor:
        """ζ at the resolution of the local units, (rows, channels, height, width)."""
        if not self.group_sizes:
            return self.constant.expand(rows, -1, -1, -1)
        up: Tensor = self.upsample(torch.cat(list(zeta), 1)[:, :, None, None])
        return up

    def local_priors(self, drawn: TopDown) -> list[Tensor]:
        """Parameters of p(h_j|ζ, h_<j) for all j, given all h."""
        outputs = self.p.all(drawn.up, [group.value for group in drawn.h])
        return [self.local_latent.parameters(each) for each in outputs]

    def global_priors(self) -> list[Tensor]:
        """Parameters of factorial global priors, (1, per unit · units) for each group; normal ones are N(0, I)."""
        per_unit = self.global_latent.parameters_per_unit
        return [part[None] for part in self.prior_parameters.split([per_unit * size for size in self.group_sizes])]

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
        q = PosteriorSource(self, self.features(x), noise, smoothing)
        per_global, per_local = self.smoothings(smoothing)
        drawn = self.top_down(q, len(x))
        zeta, h = [group.value for group in drawn.zeta], [group.value for group in drawn.h]
        kl: list[Tensor] = []
        if self.prior is not None:
            given = (self.prior, q.global_parameters, zeta, per_global, log_z)
            kl += prior_kl(objective, *given, path_only=not weights).unbind()
        elif zeta:
            groups = zip(q.global_parameters, self.global_priors(), zeta, per_global, strict=True)
            kl += [self.global_latent.term(weights)(*group) for group in groups]
        local = zip(q.local_parameters, self.local_priors(drawn), h, per_local, strict=True)
        kl += [self.local_latent.term(weights)(*group) for group in local]
        log_likelihood = self.decoder(drawn.features, self.canvas.pad(x))
        return Terms(log_likelihood, torch.stack(kl), q.global_parameters if self.binary_code else [])

    def log_weights(
        self, x: Tensor, smoothing: Smoothings | None = None, generator: torch.Generator | None = None
    ) -> LogWeights:
        """w = p(x|ζ, h) p(z) p(h|ζ) / (q(z|x) q(h|x, ζ)); each image is encoded once for all of its samples."""
        encoded, noise = self.features(x), self._noise(generator)

        def draw(k: int) -> Tensor:
            q = PosteriorSource(self, encoded.repeated(k), noise, smoothing, exact=True)
            return self._log_weight(repeated(self.canvas.pad(x), k), q).reshape(k, len(x))

        return draw

    def _log_weight(self, x: Tensor, q: Posterior) -> Tensor:
        """log w of padded images and the latents that q gives, (rows,), up to log Z."""
        drawn = self.top_down(q, len(x))
        log_w = self.decoder(drawn.features, x)
        log_w = self._with_code(log_w, q, [group.scored for group in drawn.zeta])
        latent = self.local_latent
        for mine, prior, group in zip(q.local_parameters, self.local_priors(drawn), drawn.h, strict=True):
            log_w = log_w + latent.log_prob(prior, group.scored) - latent.log_prob(mine, group.scored)
        return log_w

    def draw_latents(self, x: Tensor, generator: torch.Generator | None) -> Latents:
        drawn = self._drawn_given(x, generator)
        return [group.value for group in [*drawn.zeta, *drawn.h]]

    def _drawn_given(self, x: Tensor, generator: torch.Generator | None) -> TopDown:
        """A pass with a draw of all latents from the posterior of x, in the binary limit."""
        q = PosteriorSource(self, self.features(x), self._noise(generator), None, exact=True)
        return self.top_down(q, len(x))

    def _noise(self, generator: torch.Generator | None) -> BatchNoise:
        return BatchNoise(generator, self.device, dtype=self.dtype)

    def latent_log_weight(self, x: Tensor, latents: Latents) -> Tensor:
        q = PosteriorAt(self, self.features(x), Known(latents, len(self.group_sizes)))
        return self._log_weight(self.canvas.pad(x), q)

    def redraw(self, x: Tensor, seen: Tensor, latents: Latents, generator: torch.Generator | None) -> Tensor:
        known = self.canvas.pad(x), self.canvas.pad(seen)
        return self.decoder.generate(self._features_of(latents), generator, mean=False, known=known)

    def log_seen(self, x: Tensor, seen: Tensor, latents: Latents) -> Tensor:
        """log Π p(x_i|ℓ, coarser pixels) over the seen pixels i, of which a hidden one may be a coarser pixel."""
        scored = self.canvas.pad(seen[:, 0]).to(x)
        return self.decoder(self._features_of(latents), self.canvas.pad(x), scored)

    def expected_pixels(self, x: Tensor, latents: Latents) -> Tensor:
        """The mean of each pixel given ℓ; where pixels depend on each other, the pixels x themselves."""
        return x if self.decoder.conditional else self.decoder.generate(self._features_of(latents), None)

    def _features_of(self, latents: Latents) -> Tensor:
        return self.top_down(Known(latents, len(self.group_sizes)), len(latents[0])).features

    def _with_code(self, log_w: Tensor, q: Posterior, z: Sequence[Tensor]) -> Tensor:
        """Add log p(z) - log q(z|x), for a Boltzmann prior up to log Z."""
        for parameters, value in zip(q.global_parameters, z, strict=True):
            log_w = log_w - self.global_latent.log_prob(parameters, value)
        if self.prior is not None:
            return log_w - self.prior.energy(torch.cat(list(z), 1))
        for parameters, value in zip(self.global_priors() if z else [], z, strict=True):
            log_w = log_w + self.global_latent.log_prob(parameters.expand(len(value), -1), value)
        return log_w

    def encode(self, x: Tensor) -> Tensor:
        return (self._most_likely_logits(x) > 0).to(self.dtype)

    def code_means(self, x: Tensor) -> Tensor:
        return torch.sigmoid(self._most_likely_logits(x))

    def _most_likely_logits(self, x: Tensor) -> Tensor:
        """Logits of each global group given the most likely bits of those before."""
        logits: list[Tensor] = []
        encoded = self.features(x)
        for _ in self.group_sizes:
            bits = [(group > 0).to(self.dtype) for group in logits]
            logits.append(self.posterior_parameters(encoded, bits))
        return torch.cat(logits, -1)

    def decode(self, code: Tensor, generator: torch.Generator | None = None, mean: bool = True) -> Tensor:
        groups = list(code.split(self.group_sizes, -1)) if self.group_sizes else []
        drawn = self.top_down(PriorSource(self, groups, self._noise(generator)), len(code))
        return self.decoder.generate(drawn.features, generator, mean)

    def reconstruct(self, x: Tensor, generator: torch.Generator | None = None, mean: bool = True) -> Tensor:
        """Images given a draw of all latents from the posterior of x, in the binary limit."""
        return self.decoder.generate(self._drawn_given(x, generator).features, generator, mean)

    @property
    def reads(self) -> Literal["bernoulli", "logistic_mixture", "gaussian"]:
        return self.likelihood.reads

    def shown(self, images: Tensor) -> Tensor:
        return self.likelihood.shown(images)

    def sample_code(self, n: int, generator: torch.Generator | None = None) -> Tensor:
        if self.prior is not None:
            return super().sample_code(n, generator)
        if not self.group_sizes:
            return torch.empty(n, 0, dtype=self.dtype, device=self.device)
        noise, parts = self._noise(generator), [part.expand(n, -1) for part in self.global_priors()]
        return torch.cat([self.global_latent.draw(part, noise, None).value for part in parts], -1)

    def kl_names(self) -> list[str]:
        return super().kl_names() + [f"h{j + 1}" for j in range(self.p.num_groups)]

    def summary(self) -> list[Row]:
        return [*rows(self), Row("total", "", "", count(self))]
