"""q(ζ|x) = Σ_z q(z|x) r(ζ|z) (Eq. 2) as a torch Distribution."""

from dataclasses import replace

import torch
from torch import Tensor
from torch.distributions import Distribution, constraints, register_kl

from dvaepp.numerics import uniform
from dvaepp.smoothing.base import Overlapping, Smoothing, broadcast_shape, check_values
from dvaepp.types import Shape, Units


class SmoothedBernoulli(Distribution):
    """A Bernoulli variable with the given logits or probs, smoothed by an overlapping r(ζ|z).

        ζ ~ q(ζ|x) = (1-μ) r(ζ|0) + μ r(ζ|1),   μ = sigmoid(logits)

    Choose it for binary latents in a model of your own: samples are reparameterised, so that `rsample` passes gradients
    to the logits. With `Exponential` the entropy and `torch.distributions.kl_divergence` are exact; other smoothings
    have neither, and say so.

    >>> from dvaepp.smoothing import Exponential
    >>> q = SmoothedBernoulli(logits=torch.zeros(3), smoothing=Exponential(beta=8.0))
    >>> q.rsample().shape
    torch.Size([3])
    """

    arg_constraints = {}  # `__init__` checks the logits, because constraints.real would refuse infinite ones
    has_rsample = True

    def __init__(
        self,
        logits: Tensor | None = None,
        smoothing: Smoothing | None = None,
        validate_args: bool | None = None,
        *,
        probs: Units | None = None,
    ) -> None:
        if (logits is None) == (probs is None):
            raise ValueError("give either logits or probs, and not both")
        if logits is None:
            assert probs is not None
            check_values("probs", probs, (probs >= 0) & (probs <= 1), "in [0, 1]")
            logits = torch.logit(probs)
        if not isinstance(smoothing, Overlapping):
            raise ValueError(
                f"smoothing must be an Overlapping smoothing such as Exponential(8.0), got {smoothing!r}: "
                "the others have no density of ζ given z"
            )
        if not logits.is_floating_point():  # all that is computed of them is in their type
            logits = logits.to(torch.float32)
        self.logits = logits.expand(broadcast_shape(logits=logits, **smoothing.parameters()))
        super().__init__(self.logits.shape, validate_args=validate_args)
        if self._validate_args:
            check_values("logits", logits, ~torch.isnan(logits), "anything but NaN")
        # This class checks values itself, once; the smoothing need not do it again.
        self.smoothing = replace(smoothing, validate_args=False)

    @property
    def support(self) -> constraints.Constraint:
        return self.smoothing.support

    @property
    def probs(self) -> Tensor:
        """μ = q(z=1|x)."""
        return torch.sigmoid(self.logits)

    @property
    def mean(self) -> Tensor:
        m = self.smoothing.moments0().mean
        mirrored = 2 * self.smoothing.center - m
        return (torch.sigmoid(-self.logits) * m + self.probs * mirrored).to(self.logits.dtype)

    @property
    def variance(self) -> Tensor:
        mean, variance = self.smoothing.moments0()
        gap = 2 * self.smoothing.center - 2 * mean
        return (variance + self.probs * torch.sigmoid(-self.logits) * gap**2).to(self.logits.dtype)

    def entropy(self) -> Tensor:
        """-E log q(ζ|x), exact for `Exponential`; NotImplementedError for smoothings that have no closed form."""
        return -self._mixed(*self._components()).to(self.logits.dtype)

    def _components(self) -> tuple[Tensor, Tensor]:
        """E log q(ζ|x) over r(ζ|0) and over r(ζ|1), in float64: the mirror image swaps the two components of q."""
        return self.smoothing.expected_log_prob0(self.logits), self.smoothing.expected_log_prob0(-self.logits)

    def _mixed(self, zero: Tensor, one: Tensor) -> Tensor:
        """(1-μ) zero + μ one."""
        logits = self.logits.double()
        return torch.sigmoid(-logits) * zero + torch.sigmoid(logits) * one

    def expand(self, batch_shape: Shape, _instance: "SmoothedBernoulli | None" = None) -> "SmoothedBernoulli":
        new = self._get_checked_instance(SmoothedBernoulli, _instance)
        new.logits = self.logits.expand(torch.Size(batch_shape))
        new.smoothing = self.smoothing
        super(SmoothedBernoulli, new).__init__(new.logits.shape, validate_args=False)
        new._validate_args = self._validate_args
        return new

    def rsample(self, sample_shape: Shape = (), generator: torch.Generator | None = None) -> Units:
        shape = self._extended_shape(torch.Size(sample_shape))
        rho = uniform(*shape, generator=generator, dtype=self.logits.dtype, device=self.logits.device)
        return self.smoothing.sample(self.logits, rho).to(self.logits.dtype)

    def sample(self, sample_shape: Shape = (), generator: torch.Generator | None = None) -> Units:
        with torch.no_grad():
            return self.rsample(sample_shape, generator)

    def log_prob(self, value: Units) -> Units:
        self._check(value)
        return self.smoothing.log_prob(value, self.logits)

    def cdf(self, value: Units) -> Units:
        self._check(value)
        return self.smoothing.cdf(value, self.logits)

    def icdf(self, value: Units) -> Units:
        """F⁻¹ at `value` in [0, 1]; differentiable in the logits."""
        if self._validate_args:
            check_values("value", value, (value >= 0) & (value <= 1), "in [0, 1], the range of a CDF")
        zeta = self.smoothing.sample(self.logits, value)
        if self.support is constraints.real:  # a sample is finite even for ρ = 0 and 1, and a quantile is not
            zeta = torch.where(value == 0, -torch.inf, torch.where(value == 1, torch.inf, zeta))
        return zeta

    def posterior_logits(self, zeta: Units) -> Units:
        """The logit of ν = q(z=1|x, ζ): logits + log r(ζ|1)/r(ζ|0) (Sec. 5)."""
        self._check(zeta)
        return self.logits + self.smoothing.log_ratio(zeta)

    def __repr__(self) -> str:
        return f"SmoothedBernoulli(logits: {tuple(self.logits.shape)}, smoothing: {self.smoothing})"

    def _check(self, value: Tensor) -> None:
        if self._validate_args:
            self._validate_sample(value)


@register_kl(SmoothedBernoulli, SmoothedBernoulli)  # type: ignore[untyped-decorator]
def _kl(q: SmoothedBernoulli, p: SmoothedBernoulli) -> Tensor:
    """KL(q || p) = E log q - E log p over q, exact where both have one smoothing and it has the closed form."""
    if not _same(q.smoothing, p.smoothing):
        raise NotImplementedError(
            f"KL divergences are exact between units of one smoothing, not of {q.smoothing} and {p.smoothing}; average "
            "q.log_prob(zeta) - p.log_prob(zeta) over samples zeta of q"
        )
    zero, one = (mine - other for mine, other in zip(q._components(), p._components(), strict=True))
    return q._mixed(zero, one).clamp_min(0).to(q.logits.dtype)  # rounding may leave it below 0


def _same(first: Overlapping, second: Overlapping) -> bool:
    if type(first) is not type(second) or first.parameters().keys() != second.parameters().keys():
        return False
    return all(
        torch.equal(value, other) if isinstance(value, Tensor) else value == other
        for name, value in vars(first).items()
        if (other := getattr(second, name)) is not value
    )
