"""DVAE++ (Sec. 6, App. G): global units z behind an RBM, groups of local convolutional units h, an image decoder.

    p(z, ζ, h, x) = p(z) Π r(ζ|z) Π_j p(h_j|h_<j, ζ) p(x|ζ, h)
    q(z, ζ, h|x)  = Π_a q(z_a|x, ζ_<a) r(ζ_a|z_a) Π_j q(h_j|x, ζ, h_<j)

`top_down` walks through the latents once and asks a source for each: the posterior in training and evaluation, the
prior in generation.
"""

from collections.abc import Sequence
from typing import Literal, NamedTuple, Protocol, runtime_checkable

import torch
from torch import Tensor, nn

from dvaepp.errors import UsageError
from dvaepp.models import likelihoods
from dvaepp.models.decoder import Canvas, Decoder
from dvaepp.models.latents import LATENTS, Drawn, Latent
from dvaepp.models.local import Given, LocalNetworks, Walk
from dvaepp.models.noise import Noise
from dvaepp.networks.norm import BatchNorm
from dvaepp.networks.residual import factor, parse, residual
from dvaepp.networks.selu import Selu
from dvaepp.priors.rbm import RBM
from dvaepp.smoothing.base import Smoothing
from dvaepp.smoothing.groups import for_groups


class Architecture(NamedTuple):
    """Blocks of the paper's Table 4, each a number of filters with d or u where it halves or doubles the map.

    `posterior` and `prior` leave out their last block, whose width follows from the local units.
    """

    down1: Sequence[str]
    down2: Sequence[str]
    upsample: Sequence[str]
    posterior: Sequence[str]
    prior: Sequence[str]
    context: Sequence[str]
    upsamples: Sequence[Sequence[str]]
    input_filters: int = 32
    image_size: int = 32
    dense: Sequence[int] = ()


class Encoded(NamedTuple):
    """What q needs of images: features for the global networks, and the local networks given their own features."""

    top: Tensor
    local: Given

    def repeated(self, times: int) -> "Encoded":
        """The same images again and again, for several samples of each."""
        return Encoded(self.top.repeat(times, 1), self.local.repeated(times))


class TopDown(NamedTuple):
    """One pass: the draws of the global and of the local groups, ζ scaled up, and what the decoder reads."""

    zeta: list[Drawn]
    up: Tensor
    h: list[Drawn]
    features: Tensor


@runtime_checkable
class Source(Protocol):
    """Where a pass takes its latents from."""

    def global_group(self, before: Sequence[Tensor]) -> Drawn: ...

    def local_group(self, up: Tensor, before: Sequence[Tensor]) -> Drawn: ...


class DVAE(nn.Module):
    """`global_kind` "none" puts a learned map in place of ζ scaled up."""

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
            self.encoders = nn.ModuleList(
                Selu(top + sum(self.group_sizes[:i]), per_unit * size, a.dense, generator=generator)
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
        self.decoder = Decoder(
            up + local_groups * local_channels,
            self.resolution,
            self.canvas,
            self.likelihood,
            a.context,
            a.upsamples,
            a.input_filters,
            conditional,
            generator,
        )

    @property
    def device(self) -> torch.device:
        return next(self.parameters()).device

    @property
    def num_units(self) -> int:
        return sum(self.group_sizes)

    def smoothings(self, smoothing: Smoothing | Sequence[Smoothing]) -> tuple[Sequence[Smoothing], Sequence[Smoothing]]:
        """A smoothing for each global and for each local group, from one for all or one for each binary group."""
        num_global, num_local = len(self.group_sizes), self.p.num_groups
        if isinstance(smoothing, Smoothing):
            return [smoothing] * num_global, [smoothing] * num_local
        binary = LATENTS["bernoulli"]
        smoothed = num_global if self.global_latent is binary else 0
        each = for_groups(smoothing, smoothed + (num_local if self.local_latent is binary else 0))
        # normal groups ignore what they are given
        return each[:smoothed] or [each[0]] * num_global, each[smoothed:] or [each[0]] * num_local

    def encode(self, x: Tensor) -> Encoded:
        """Of images (rows, channels, height, width)."""
        features = self.norm1(self.down1(self.input_norm(self.canvas.pad(x))))
        top = self.norm2(self.down2(features)).flatten(1) if self.group_sizes else features.flatten(1)
        return Encoded(top, self.q.given(features))

    def posterior_parameters(self, encoded: Encoded, before: Sequence[Tensor]) -> Tensor:
        """Of q(z_a|x, ζ_<a), the group after `before`."""
        parameters: Tensor = self.encoders[len(before)](torch.cat([encoded.top, *before], 1))
        return parameters

    def top_down(self, source: Source, rows: int) -> TopDown:
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
        return self.p.all(drawn.up, [group.value for group in drawn.h])

    def global_priors(self) -> list[Tensor]:
        """Parameters of factorial global priors, (1, per unit · units) for each group; normal ones are N(0, I)."""
        per_unit = self.global_latent.parameters_per_unit
        return [part[None] for part in self.prior_parameters.split([per_unit * size for size in self.group_sizes])]


class Posterior:
    """q(z, ζ, h|x) as a source. `exact` draws z and then ζ, for evaluation; otherwise reparameterised samples."""

    def __init__(
        self,
        model: DVAE,
        encoded: Encoded,
        noise: Noise,
        smoothing: Smoothing | Sequence[Smoothing] | None,
        exact: bool = False,
    ) -> None:
        self.model, self.encoded, self.noise, self.exact = model, encoded, noise, exact
        self._smoothings = None if smoothing is None else model.smoothings(smoothing)
        self.global_parameters: list[Tensor] = []
        self.local_parameters: list[Tensor] = []
        self._walk: Walk | None = None

    def global_group(self, before: Sequence[Tensor]) -> Drawn:
        self.global_parameters.append(self.model.posterior_parameters(self.encoded, before))
        smoothing = None if self._smoothings is None else self._smoothings[0][len(before)]
        return self._draw(self.model.global_latent, self.global_parameters[-1], smoothing)

    def local_group(self, up: Tensor, before: Sequence[Tensor]) -> Drawn:
        if self._walk is None:
            self._walk = self.encoded.local.walk(up)
        self.local_parameters.append(self._walk(before))
        smoothing = None if self._smoothings is None else self._smoothings[1][len(before)]
        return self._draw(self.model.local_latent, self.local_parameters[-1], smoothing)

    def _draw(self, latent: Latent, parameters: Tensor, smoothing: Smoothing | None) -> Drawn:
        if self.exact:
            return latent.draw(parameters, self.noise, smoothing)
        assert smoothing is not None
        value = latent.sample(parameters, self.noise, smoothing)
        return Drawn(value, value)


class Prior:
    """p(h|ζ) as a source, after given global values."""

    def __init__(self, model: DVAE, zeta: Sequence[Tensor], noise: Noise, smoothing: Smoothing | None = None) -> None:
        self.model, self.zeta, self.noise, self.smoothing = model, zeta, noise, smoothing
        self._walk: Walk | None = None

    def global_group(self, before: Sequence[Tensor]) -> Drawn:
        value = self.zeta[len(before)]
        return Drawn(value, value)

    def local_group(self, up: Tensor, before: Sequence[Tensor]) -> Drawn:
        if self._walk is None:
            self._walk = self.model.p.walk(up)
        return self.model.local_latent.draw(self._walk(before), self.noise, self.smoothing)
