"""Sources of the latents of DVAE++ (Sec. 6): the posterior, the prior, or values that are given."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, runtime_checkable

from torch import Tensor

from dvaepp.models.latents import Drawn, Latent
from dvaepp.models.local import Given, LocalWalk
from dvaepp.models.noise import BatchNoise
from dvaepp.smoothing.base import Smoothing

if TYPE_CHECKING:
    from dvaepp.models.dvaepp import DVAE
else:
    DVAE = Any  # known to type checkers alone, because its file imports this one


class Encoded(NamedTuple):
    """What the posterior needs of images: features for the global networks, and local networks that have read x."""

    top: Tensor
    local: Given

    def repeated(self, times: int) -> "Encoded":
        """The same for `times` copies of the images, one after another."""
        return Encoded(self.top.repeat(times, 1), self.local.repeated(times))


class TopDown(NamedTuple):
    """The result of a top-down pass: global groups, ζ at the resolution of h, local groups, and the decoder's input."""

    zeta: list[Drawn]
    up: Tensor
    h: list[Drawn]
    features: Tensor


@runtime_checkable
class Source(Protocol):
    """What `DVAE.top_down` asks for each group, given the values of those before it."""

    def global_group(self, before: Sequence[Tensor]) -> Drawn: ...

    def local_group(self, up: Tensor, before: Sequence[Tensor]) -> Drawn: ...


class Posterior(ABC):
    """A source that keeps the parameters of q(z, ζ, h|x) for the KL and the importance weights, group by group."""

    def __init__(self, model: DVAE, encoded: Encoded) -> None:
        self.model, self.encoded = model, encoded
        self.global_parameters: list[Tensor] = []
        self.local_parameters: list[Tensor] = []
        self._walk: LocalWalk | None = None

    @abstractmethod
    def global_group(self, before: Sequence[Tensor]) -> Drawn: ...

    @abstractmethod
    def local_group(self, up: Tensor, before: Sequence[Tensor]) -> Drawn: ...

    def of_global_group(self, before: Sequence[Tensor]) -> Tensor:
        self.global_parameters.append(self.model.posterior_parameters(self.encoded, before))
        return self.global_parameters[-1]

    def of_local_group(self, up: Tensor, before: Sequence[Tensor]) -> Tensor:
        if self._walk is None:
            self._walk = self.encoded.local.walk(up)
        self.local_parameters.append(self.model.local_latent.parameters(self._walk(before)))
        return self.local_parameters[-1]


class PosteriorSource(Posterior):
    """Latents from q(z, ζ, h|x).

    They are reparameterised samples for training. With `exact` they are draws of z and then of ζ for evaluation; a
    smoothing of None means ζ = z.
    """

    def __init__(
        self,
        model: DVAE,
        encoded: Encoded,
        noise: BatchNoise,
        smoothing: Smoothing | Sequence[Smoothing] | None,
        exact: bool = False,
    ) -> None:
        super().__init__(model, encoded)
        self.noise, self.exact = noise, exact
        self._smoothings = None if smoothing is None else model.smoothings(smoothing)

    def global_group(self, before: Sequence[Tensor]) -> Drawn:
        smoothing = None if self._smoothings is None else self._smoothings[0][len(before)]
        return self._draw(self.model.global_latent, self.of_global_group(before), smoothing)

    def local_group(self, up: Tensor, before: Sequence[Tensor]) -> Drawn:
        smoothing = None if self._smoothings is None else self._smoothings[1][len(before)]
        return self._draw(self.model.local_latent, self.of_local_group(up, before), smoothing)

    def _draw(self, latent: Latent, parameters: Tensor, smoothing: Smoothing | None) -> Drawn:
        if self.exact:
            return latent.draw(parameters, self.noise, smoothing)
        assert smoothing is not None
        value = latent.sample(parameters, self.noise, smoothing)
        return Drawn(value, value)


class Known:
    """Latents whose values are given: all of them, or only the global ones for a subclass that draws the others."""

    def __init__(self, values: Sequence[Tensor], num_global: int) -> None:
        self.zeta, self.h = values[:num_global], values[num_global:]

    def global_group(self, before: Sequence[Tensor]) -> Drawn:
        return Drawn(self.zeta[len(before)], self.zeta[len(before)])

    def local_group(self, up: Tensor, before: Sequence[Tensor]) -> Drawn:
        return Drawn(self.h[len(before)], self.h[len(before)])


class PosteriorAt(Posterior):
    """Latents whose values are given, with the parameters that q(ℓ|x) has there, in the binary limit."""

    def __init__(self, model: DVAE, encoded: Encoded, known: Known) -> None:
        super().__init__(model, encoded)
        self.known = known

    def global_group(self, before: Sequence[Tensor]) -> Drawn:
        self.of_global_group(before)
        return self.known.global_group(before)

    def local_group(self, up: Tensor, before: Sequence[Tensor]) -> Drawn:
        self.of_local_group(up, before)
        return self.known.local_group(up, before)


class PriorSource(Known):
    """Local latents drawn from p(h|ζ) in the binary limit, after global values that are given."""

    def __init__(self, model: DVAE, zeta: Sequence[Tensor], noise: BatchNoise) -> None:
        super().__init__(zeta, len(zeta))
        self.model, self.noise = model, noise
        self._walk: LocalWalk | None = None

    def local_group(self, up: Tensor, before: Sequence[Tensor]) -> Drawn:
        if self._walk is None:
            self._walk = self.model.p.walk(up)
        latent = self.model.local_latent
        return latent.draw(latent.parameters(self._walk(before)), self.noise, None)
