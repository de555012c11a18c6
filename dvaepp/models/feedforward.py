"""The feed-forward models of Sec. 7.1 and 7.2: hierarchical posterior, Boltzmann or directed prior, Bernoulli decoder.

    q(z, ζ|x) = Π_a q(z_a|x, ζ_<a) r(ζ_a|z_a),   p(x, ζ, z) = p(z) Π r(ζ|z) p(x|ζ)

The encoder reads x - mean(train); the decoder's logits are offset by the fixed logit of that mean, so that an untrained
model already has the right grey.
"""

from collections.abc import Sequence
from typing import Literal, NamedTuple

import torch
from torch import Tensor, nn

from dvaepp.errors import UsageError
from dvaepp.kernels import bernoulli
from dvaepp.networks.dense import Dense
from dvaepp.priors.rbm import RBM
from dvaepp.smoothing.base import Smoothing
from dvaepp.smoothing.groups import for_groups


class Posterior(NamedTuple):
    """Per group a: logits of q(z_a|x, ζ_<a) and the sample ζ_a, each (..., units)."""

    logits: list[Tensor]
    zeta: list[Tensor]


class FeedForward(nn.Module):
    """A VAE with groups of binary latent units.

    `prior`: "rbm", whose sides are the two halves of all units, or "directed", p(z_a|ζ_<a) by a network like the
    encoder's (the first group has a free logit per unit). `centered_code` feeds the decoder 2ζ - 1 (Sec. 7.1).
    """

    train_mean: Tensor
    output_bias: Tensor

    def __init__(
        self,
        train_mean: Tensor,
        group_sizes: Sequence[int],
        *,
        hidden: Sequence[int] = (),
        prior: Literal["rbm", "directed"] = "rbm",
        batch_norm: bool = True,
        centered_code: bool = False,
        generator: torch.Generator | None = None,
    ) -> None:
        super().__init__()
        self.image_shape = tuple(train_mean.shape)
        self.group_sizes = list(group_sizes)
        self.centered_code = centered_code
        mean = train_mean.reshape(-1).float()
        self.register_buffer("train_mean", mean)
        self.register_buffer("output_bias", torch.logit(mean.clamp(0.001, 0.999)))
        pixels, units = len(mean), sum(group_sizes)

        def dense(inputs: int, outputs: int) -> Dense:
            return Dense(inputs, outputs, hidden, batch_norm=batch_norm, generator=generator)

        before = [sum(group_sizes[:a]) for a in range(len(group_sizes))]
        self.encoders = nn.ModuleList(dense(pixels + n, size) for n, size in zip(before, group_sizes, strict=True))
        self.decoder = dense(units, pixels)
        self.prior: RBM | None = None
        if prior == "rbm":
            if units < 2:
                raise UsageError(f"an RBM prior needs at least 2 units, got {units}")
            self.prior = RBM(units // 2, units - units // 2)
        else:
            self.first_logits = nn.Parameter(torch.zeros(group_sizes[0], dtype=torch.float32))
            later = list(zip(before, group_sizes, strict=True))[1:]
            self.prior_networks = nn.ModuleList(dense(n, size) for n, size in later)

    @property
    def num_units(self) -> int:
        return sum(self.group_sizes)

    def posterior(self, x: Tensor, rho: Sequence[Tensor], smoothing: Smoothing | Sequence[Smoothing]) -> Posterior:
        """Sample the groups in turn; x (batch, pixels), rho per group (batch, units); a smoothing, or one each."""
        centered = x - self.train_mean
        logits: list[Tensor] = []
        zeta: list[Tensor] = []
        for encoder, noise, each in zip(self.encoders, rho, for_groups(smoothing, len(rho)), strict=True):
            logits.append(encoder(centered, *zeta))
            zeta.append(each.sample(logits[-1], noise))
        return Posterior(logits, zeta)

    def prior_logits(self, zeta: Sequence[Tensor]) -> list[Tensor]:
        """Logits of the directed prior p(z_a|ζ_<a)."""
        later = [net(*zeta[: a + 1]) for a, net in enumerate(self.prior_networks)]
        return [self.first_logits, *later]

    def pixel_logits(self, zeta: Sequence[Tensor]) -> Tensor:
        """Logits of p(x|ζ), (..., pixels)."""
        code = [2 * group - 1 for group in zeta] if self.centered_code else zeta
        logits: Tensor = self.decoder(*code, offset=self.output_bias)
        return logits

    def log_likelihood(self, x: Tensor, zeta: Sequence[Tensor]) -> Tensor:
        """log p(x|ζ), (batch,)."""
        return bernoulli.log_prob(x, self.pixel_logits(zeta))
