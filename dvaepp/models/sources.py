"""Where a pass through the latents of DVAE++ takes them from: the posterior, or the prior (Sec. 6)."""

from collections.abc import Sequence
from typing import NamedTuple, Protocol, runtime_checkable

from torch import Tensor

from dvaepp.models.latents import Drawn, Latent
from dvaepp.models.local import Given, LocalNetworks, LocalWalk
from dvaepp.models.noise import BatchNoise
from dvaepp.smoothing.base import Smoothing


class Encoded(NamedTuple):
    """What the posterior needs of images: features for the global networks, and local networks that have read x."""

    top: Tensor
    local: Given

    def repeated(self, times: int) -> "Encoded":
        """The same images again and again, for several samples of each."""
        return Encoded(self.top.repeat(times, 1), self.local.repeated(times))


class TopDown(NamedTuple):
    """The result of a pass: the global groups, the upsampled ζ, the local groups, and what the decoder reads."""

    zeta: list[Drawn]
    up: Tensor
    h: list[Drawn]
    features: Tensor


@runtime_checkable
class Source(Protocol):
    """Where a pass takes its latents from."""

    def global_group(self, before: Sequence[Tensor]) -> Drawn: ...

    def local_group(self, up: Tensor, before: Sequence[Tensor]) -> Drawn: ...


@runtime_checkable
class Hierarchy(Protocol):
    """What a source asks of the model."""

    global_latent: Latent
    local_latent: Latent
    p: LocalNetworks

    def smoothings(
        self, smoothing: Smoothing | Sequence[Smoothing]
    ) -> tuple[Sequence[Smoothing], Sequence[Smoothing]]: ...

    def posterior_parameters(self, encoded: Encoded, before: Sequence[Tensor]) -> Tensor: ...


class PosteriorSource:
    """Latents from q(z, ζ, h|x): reparameterised samples for training, or with `exact`, for evaluation, z and then ζ.

    It keeps the parameters of every group, which the KL and the importance weights need.
    """

    def __init__(
        self,
        model: Hierarchy,
        encoded: Encoded,
        noise: BatchNoise,
        smoothing: Smoothing | Sequence[Smoothing] | None,
        exact: bool = False,
    ) -> None:
        self.model, self.encoded, self.noise, self.exact = model, encoded, noise, exact
        self._smoothings = None if smoothing is None else model.smoothings(smoothing)
        self.global_parameters: list[Tensor] = []
        self.local_parameters: list[Tensor] = []
        self._walk: LocalWalk | None = None

    def global_group(self, before: Sequence[Tensor]) -> Drawn:
        self.global_parameters.append(self.model.posterior_parameters(self.encoded, before))
        smoothing = None if self._smoothings is None else self._smoothings[0][len(before)]
        return self._draw(self.model.global_latent, self.global_parameters[-1], smoothing)

    def local_group(self, up: Tensor, before: Sequence[Tensor]) -> Drawn:
        if self._walk is None:
            self._walk = self.encoded.local.walk(up)
        self.local_parameters.append(self.model.local_latent.parameters(self._walk(before)))
        smoothing = None if self._smoothings is None else self._smoothings[1][len(before)]
        return self._draw(self.model.local_latent, self.local_parameters[-1], smoothing)

    def _draw(self, latent: Latent, parameters: Tensor, smoothing: Smoothing | None) -> Drawn:
        if self.exact:
            return latent.draw(parameters, self.noise, smoothing)
        assert smoothing is not None
        value = latent.sample(parameters, self.noise, smoothing)
        return Drawn(value, value)


class Known:
    """Latents whose values are given: all of them, or only the global ones for a subclass that draws the others."""

    def __init__(self, zeta: Sequence[Tensor], h: Sequence[Tensor] = ()) -> None:
        self.zeta, self.h = zeta, h

    def global_group(self, before: Sequence[Tensor]) -> Drawn:
        return Drawn(self.zeta[len(before)], self.zeta[len(before)])

    def local_group(self, up: Tensor, before: Sequence[Tensor]) -> Drawn:
        return Drawn(self.h[len(before)], self.h[len(before)])


class KnownPosteriorSource(PosteriorSource):
    """Latents whose values are given, with the parameters that q(ℓ|x) has there, in the binary limit."""

    def __init__(self, model: Hierarchy, encoded: Encoded, noise: BatchNoise, known: Known) -> None:
        super().__init__(model, encoded, noise, None, exact=True)
        self.known = known

    def global_group(self, before: Sequence[Tensor]) -> Drawn:
        super().global_group(before)
        return self.known.global_group(before)

    def local_group(self, up: Tensor, before: Sequence[Tensor]) -> Drawn:
        super().local_group(up, before)
        return self.known.local_group(up, before)


class PriorSource(Known):
    """Local latents drawn from p(h|ζ) in the binary limit, after global values that are given."""

    def __init__(self, model: Hierarchy, zeta: Sequence[Tensor], noise: BatchNoise) -> None:
        super().__init__(zeta)
        self.model, self.noise = model, noise
        self._walk: LocalWalk | None = None

    def local_group(self, up: Tensor, before: Sequence[Tensor]) -> Drawn:
        if self._walk is None:
            self._walk = self.model.p.walk(up)
        latent = self.model.local_latent
        return latent.draw(latent.parameters(self._walk(before)), self.noise, None)
