"""The feed-forward models of Sec. 7.1 and 7.2: a `BinaryVAE` of dense networks with a Bernoulli decoder.

The encoder reads x - mean(train). The logit of that mean is added to the decoder's logits, so that an untrained model
already predicts the mean image.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from dvaepp.estimators.base import RelaxedTarget
from dvaepp.models.base import LogWeights, Smoothings
from dvaepp.models.binary_vae import BinaryVAE, Network
from dvaepp.models.dense_target import DenseTarget
from dvaepp.models.dense_weights import CHUNK, ROWS, DenseWeights
from dvaepp.networks.dense import Dense
from dvaepp.priors import MEMBERS, Prior
from dvaepp.priors.family import earlier_units


class FeedForward(BinaryVAE):
    """A VAE of dense networks with groups of binary latent units, as the recipes of Tables 1 and 2 build it.

    Choose it for those models without a recipe; `BinaryVAE` takes networks of your own. `prior` names a member of
    `dvaepp.priors`, with its `prior_options`: "rbm" has the two halves of all units as its sides, "directed" has
    networks like the encoder's. `centered_code` feeds the decoder 2ζ - 1 (Sec. 7.1).

    >>> model = FeedForward(torch.full((1, 4, 4), 0.5), group_sizes=[8, 8], hidden=(16,))
    >>> model.encode(torch.zeros(3, 1, 4, 4)).shape
    torch.Size([3, 16])
    """

    rows_at_once = ROWS
    samples_in_chunk = CHUNK
    former_names = {"prior.first_logits": "first_logits", "prior.networks.": "prior_networks."}
    train_mean: Tensor
    output_bias: Tensor

    def __init__(
        self,
        train_mean: Tensor,
        group_sizes: Sequence[int],
        *,
        hidden: Sequence[int] = (),
        prior: str = "rbm",
        prior_options: Mapping[str, Any] | None = None,
        batch_norm: bool = True,
        centered_code: bool = False,
        generator: torch.Generator | None = None,
    ) -> None:
        mean = train_mean.reshape(-1).float()
        pixels, units = len(mean), sum(group_sizes)

        def dense(inputs: int, outputs: int) -> Dense:
            return Dense(inputs, outputs, hidden, batch_norm=batch_norm, generator=generator)

        before = earlier_units(group_sizes)
        encoders = [dense(pixels + n, size) for n, size in zip(before, group_sizes, strict=True)]
        decoder = dense(units, pixels)
        member: Any = MEMBERS[prior]
        made: Prior = member.for_groups(group_sizes, dense, **(prior_options or {}))
        super().__init__(encoders, decoder, made, image_shape=train_mean.shape, group_sizes=group_sizes)
        self.centered_code = centered_code
        self.register_buffer("train_mean", mean)
        self.register_buffer("output_bias", torch.logit(mean.clamp(0.001, 0.999)))

    def context(self, x: Tensor) -> Tensor:
        return x.flatten(1) - self.train_mean

    def group_logits(self, encoder: Network, context: Tensor, before: Sequence[Tensor], copies: int) -> Tensor:
        """A dense network computes the share of the context in its first layer once for all copies."""
        logits: Tensor = encoder(context, *before)
        return logits

    def likelihood_parameters(self, zeta: Sequence[Tensor]) -> Tensor:
        """Logits of p(x|ζ), (..., pixels)."""
        code = [2 * group - 1 for group in zeta] if self.centered_code else zeta
        logits: Tensor = self.decoder(*code, offset=self.output_bias)
        return logits

    def log_weights(
        self, x: Tensor, smoothing: Smoothings | None = None, generator: torch.Generator | None = None
    ) -> LogWeights:
        """As for any model, in the faster form that `models/dense_weights.py` has for dense networks."""
        return DenseWeights(self, x.flatten(1), smoothing, generator).draw

    def target(self, x: Tensor) -> RelaxedTarget:
        return DenseTarget(self, x.flatten(1))
