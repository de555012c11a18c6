"""The likelihood of 8-bit images: a mixture of discretized logistics (Sec. 6.1, App. G).

One pixel x = (R, G, B), each at one of 256 levels of [-1, 1], 2/255 apart. Given component k, channel c is logistic
with mean m_c and scale s_c = e^(log_scale), and its mass is that of the bin around the level, half-width 1/255,
with the outermost bins open:

    p(x) = Σ_k π_k Π_c [F((x_c + 1/255 - m_c)/s_c) - F((x_c - 1/255 - m_c)/s_c)],   F = sigmoid
    m_G = mean_G + α R,   m_B = mean_B + β R + γ G,   (α, β, γ) = tanh(coefficients)

These are the parameters of PixelCNN++, which the paper cites; the mixture is over whole pixels. Beyond the paper, a
grey pixel has one channel and no coefficients.
"""

from functools import partial

import torch
from torch import Tensor
from torch.distributions import Distribution, constraints
from torch.nn.functional import logsigmoid

from dvaepp.numerics import uniform
from dvaepp.types import Shape

LEVELS = 256
HALF_BIN = 1 / (LEVELS - 1)
MIN_LOG_SCALE = -7.0  # the floor of PixelCNN++, far narrower than a bin


class _Levels(constraints.Constraint):
    """The 256 levels -1, -1 + 2/255, ..., 1."""

    is_discrete = True
    event_dim = 0

    def check(self, value: Tensor) -> Tensor:
        level = (value + 1) / (2 * HALF_BIN)
        return (value >= -1) & (value <= 1) & ((level - level.round()).abs() < 1e-3)


class DiscretizedLogisticMixture(Distribution):
    """Pixels of three channels: `mixture_logits` (..., K), the other parameters (..., 3, K).

    Choose it for the pixels of 8-bit photographs, where a Bernoulli likelihood would need binary images. Grey pixels
    have means and log-scales (..., 1, K) and no `coefficients`. `log_scales` below -7 are raised to it; `coefficients`
    pass through tanh. Event shape (3,) or (1,), discrete.

    >>> p = DiscretizedLogisticMixture(torch.zeros(5), torch.zeros(1, 5), torch.zeros(1, 5))
    >>> p.log_prob(p.sample((7,))).shape
    torch.Size([7])
    """

    def __init__(
        self,
        mixture_logits: Tensor,
        means: Tensor,
        log_scales: Tensor,
        coefficients: Tensor | None = None,
        validate_args: bool | None = None,
    ) -> None:
        colours = 1 if coefficients is None else 3
        expected = (*mixture_logits.shape[:-1], colours, mixture_logits.shape[-1])
        named = {"means": means, "log_scales": log_scales, "coefficients": coefficients}
        for name, value in named.items():
            if value is not None and tuple(value.shape) != expected:
                without = " without coefficients" if coefficients is None else ""
                raise ValueError(
                    f"{name} must have shape {expected}{without} (mixture_logits has {tuple(mixture_logits.shape)}), "
                    f"got {tuple(value.shape)}"
                )
        self.mixture_logits = mixture_logits
        self.means, self.log_scales, self.coefficients = means, log_scales, coefficients
        super().__init__(mixture_logits.shape[:-1], torch.Size([colours]), validate_args=validate_args)

    @classmethod
    def from_channels(
        cls, channels: Tensor, validate_args: bool | None = None, *, grey: bool = False
    ) -> "DiscretizedLogisticMixture":
        """Read (batch, 10 K, height, width) network outputs: K logits, then 3 K means, log-scales, coefficients.

        `grey` pixels have 3 K outputs: K logits, K means, K log-scales.
        """
        per_mixture = 3 if grey else 10
        if channels.dim() != 4 or channels.shape[1] % per_mixture:
            raise ValueError(
                f"channels must be (batch, {per_mixture} K, height, width) for K mixtures, got {tuple(channels.shape)}"
            )
        k = channels.shape[1] // per_mixture
        last = channels.permute(0, 2, 3, 1)
        parts = (2, 1, k) if grey else (3, 3, k)  # (means, log-scales, coefficients) x channel x mixture
        rest = last[..., k:].unflatten(-1, parts)
        coefficients = None if grey else rest[..., 2, :, :]
        return cls(last[..., :k], rest[..., 0, :, :], rest[..., 1, :, :], coefficients, validate_args)

    @property
    def arg_constraints(self) -> dict[str, constraints.Constraint]:
        matrix = constraints.independent(constraints.real, 2)
        found: dict[str, constraints.Constraint] = {
            "mixture_logits": constraints.real_vector,
            "means": matrix,
            "log_scales": matrix,
        }
        return found if self.coefficients is None else found | {"coefficients": matrix}

    @property
    def support(self) -> constraints.Constraint:
        return constraints.independent(_Levels(), 1)

    def expand(
        self, batch_shape: Shape, _instance: "DiscretizedLogisticMixture | None" = None
    ) -> "DiscretizedLogisticMixture":
        new = self._get_checked_instance(DiscretizedLogisticMixture, _instance)
        batch_shape = torch.Size(batch_shape)
        new.mixture_logits = self.mixture_logits.expand(batch_shape + self.mixture_logits.shape[-1:])
        for name in ("means", "log_scales", "coefficients"):
            value = getattr(self, name)
            setattr(new, name, None if value is None else value.expand(batch_shape + self.means.shape[-2:]))
        super(DiscretizedLogisticMixture, new).__init__(batch_shape, self.event_shape, validate_args=False)
        new._validate_args = self._validate_args
        return new

    @property
    def mean(self) -> Tensor:
        """The mean of grey pixels, an exact sum over the 256 levels."""
        levels, mass = self._masses()
        return (mass * levels).sum(-1, keepdim=True)

    @property
    def variance(self) -> Tensor:
        """The variance of grey pixels, an exact sum over the 256 levels."""
        levels, mass = self._masses()
        return (mass * (levels - self.mean) ** 2).sum(-1, keepdim=True)

    def _masses(self) -> tuple[Tensor, Tensor]:
        """The levels, and the probability of each, (..., 256)."""
        if self.coefficients is not None:
            raise NotImplementedError(
                "moments of colour pixels need sums over 256 x 256 colours; average samples instead"
            )
        level = torch.arange(LEVELS, dtype=self.means.dtype, device=self.means.device) * (2 * HALF_BIN) - 1
        points = level.reshape(LEVELS, *[1] * len(self.batch_shape), 1).expand(LEVELS, *self.batch_shape, 1)
        return level, self.expand(torch.Size([LEVELS, *self.batch_shape])).log_prob(points).exp().movedim(0, -1)

    def log_prob(self, value: Tensor) -> Tensor:
        """log p(x) of pixels (..., 3), or (..., 1) when grey, at levels in [-1, 1]."""
        if self._validate_args:
            self._validate_sample(value)
        x = value.unsqueeze(-1)
        mass = _log_bin_mass(x, self._conditional_means(x), self.log_scales.clamp_min(MIN_LOG_SCALE))
        return torch.logsumexp(torch.log_softmax(self.mixture_logits, -1) + mass.sum(-2), -1)

    def sample(self, sample_shape: Shape = (), generator: torch.Generator | None = None) -> Tensor:
        """Draw pixels exactly at the levels, channel after channel."""
        shape = self._extended_shape(torch.Size(sample_shape))[:-1]
        with torch.no_grad():
            draw = partial(uniform, generator=generator, dtype=self.means.dtype, device=self.means.device)
            noise = draw(*shape, self.mixture_logits.shape[-1])
            k = (self.mixture_logits - torch.log(-torch.log(noise))).argmax(-1)  # Gumbel-max
            index = k[..., None, None].expand(*shape, *self.event_shape, 1)

            def chosen(parameter: Tensor) -> Tensor:
                return parameter.expand(*shape, *parameter.shape[-2:]).gather(-1, index).squeeze(-1)

            scales = chosen(self.log_scales.clamp_min(MIN_LOG_SCALE)).exp()
            y = chosen(self.means) + scales * torch.logit(draw(*shape, *self.event_shape))
            if self.coefficients is None:
                return _nearest_level(y)
            c = chosen(torch.tanh(self.coefficients))
            red = _nearest_level(y[..., 0])
            green = _nearest_level(y[..., 1] + c[..., 0] * red)
            blue = _nearest_level(y[..., 2] + c[..., 1] * red + c[..., 2] * green)
            return torch.stack([red, green, blue], -1)

    def _conditional_means(self, x: Tensor) -> Tensor:
        if self.coefficients is None:
            return self.means
        c = torch.tanh(self.coefficients)
        red, green = x[..., 0, :], x[..., 1, :]
        shift_green = c[..., 0, :] * red
        shift_blue = c[..., 1, :] * red + c[..., 2, :] * green
        return self.means + torch.stack([torch.zeros_like(shift_green), shift_green, shift_blue], -2)


def _log_bin_mass(x: Tensor, means: Tensor, log_scales: Tensor) -> Tensor:
    """log [F(b) - F(a)] for bin edges a < b, without cancellation.

    F(b) - F(a) = F(b) F(-a) (1 - e^(a-b)), and b - a = 2 HALF_BIN / s depends on the scale alone.
    """
    inverse_scale = torch.exp(-log_scales)
    upper = (x - means + HALF_BIN) * inverse_scale
    lower = (x - means - HALF_BIN) * inverse_scale
    width = (2 * HALF_BIN * inverse_scale).clamp_min(torch.finfo(x.dtype).tiny)
    inside = logsigmoid(upper) + logsigmoid(-lower) + torch.log(-torch.expm1(-width))
    edge = 1 - HALF_BIN  # between the two outermost levels and the rest
    return torch.where(x < -edge, logsigmoid(upper), torch.where(x > edge, logsigmoid(-lower), inside))


def _nearest_level(y: Tensor) -> Tensor:
    return ((y + 1) / (2 * HALF_BIN)).round().clamp(0, LEVELS - 1) * (2 * HALF_BIN) - 1
