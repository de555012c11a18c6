"""Log weights of importance samples for dense networks, in a form faster than that of `BinaryVAE`.

Evaluating a feed-forward model spends most of its time here. What depends on x alone is computed once per image: its
part of the first layer of each encoder, and the logits of the first group. Batch norm is folded into the layers, and
all samples of all images are the rows of one matrix. Given the same noise the numbers are those of
`BinaryVAE.log_weights`. Every `CHUNK` of samples has a seed of its own, so that the noise does not depend on how many
samples are drawn at a time.
"""

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from dvaepp.kernels import bernoulli
from dvaepp.kernels.products import linear
from dvaepp.models.base import Smoothings
from dvaepp.models.latents import smoothed
from dvaepp.networks.dense import Affine, Dense
from dvaepp.numerics import uniform, widened
from dvaepp.priors.directed import Directed
from dvaepp.samplers.noise import Noise
from dvaepp.smoothing.groups import for_groups

if TYPE_CHECKING:
    from dvaepp.models.feedforward import FeedForward
else:
    FeedForward = Any  # known to type checkers alone, because its file imports this one

ROWS = 2048  # samples times images that are decoded at once: their logits of 784 pixels fit the cache
CHUNK = 8  # samples whose noise has one seed


class DenseWeights:
    """log w up to log Z for samples of the given images."""

    def __init__(
        self,
        model: FeedForward,
        x: Tensor,
        smoothing: Smoothings | None,
        generator: torch.Generator | None,
    ) -> None:
        self.model, self.x, self.generator = model, widened(x), generator
        self.smoothings = None if smoothing is None else for_groups(smoothing, len(model.group_sizes))
        self.encoders = [net.frozen() for net in model.encoders if isinstance(net, Dense)]
        self.decoder = _pixel_maps(model)
        self.prior_maps: list[list[Affine]] = []
        if isinstance(model.prior, Directed):
            self.prior_maps = [net.frozen() for net in model.prior.networks if isinstance(net, Dense)]
        centered = self.x - model.train_mean
        self.from_x = [linear(centered, maps[0].weight[:, : x.shape[1]], maps[0].bias) for maps in self.encoders]
        self.first_logits = _after_first(self.encoders[0], self.from_x[0].clone())

    def draw(self, k: int) -> Tensor:
        """The next k samples of every image, (k, batch)."""
        batch, pixels = self.x.shape
        seeds = [_seed(self.generator, self.x.device) for _ in range(0, k, CHUNK)]
        chunks = [_Chunk(seed, self.x.device, min(CHUNK, k - CHUNK * c) * batch) for c, seed in enumerate(seeds)]
        z = self.x.new_empty(k * batch, sum(self.model.group_sizes))
        zeta = z if self.smoothings is None else torch.empty_like(z)
        log_q = self.x.new_zeros(k * batch)
        start = 0
        for a, (maps, size) in enumerate(zip(self.encoders, self.model.group_sizes, strict=True)):
            if a == 0:
                logits = self.first_logits.repeat(k, 1)
            else:
                first = linear(zeta[:, :start], maps[0].weight[:, pixels:]).view(k, batch, -1).add_(self.from_x[a])
                logits = _after_first(maps, first.flatten(0, 1))
            group = slice(start, start + size)
            _threshold(chunks, logits, z[:, group])
            log_q += bernoulli.log_prob(z[:, group], logits)
            if self.smoothings is not None:
                rho = torch.cat([chunk.uniform(size) for chunk in chunks])
                zeta[:, group] = smoothed(z[:, group], self.smoothings[a], rho)
            start += size
        pixel_logits = _apply(self.decoder, zeta).view(k, batch, pixels)
        log_p_x = bernoulli.log_prob(self.x, pixel_logits)
        return log_p_x + (self._log_prior(z, zeta) - log_q).view(k, batch)

    def _log_prior(self, z: Tensor, zeta: Tensor) -> Tensor:
        """log p(z) per row, for a Boltzmann prior without its log Z."""
        prior = self.model.prior
        if not isinstance(prior, Directed):
            return prior.unnormalized_log_prob(z, zeta)
        sizes = self.model.group_sizes
        total, start = bernoulli.log_prob(z[:, : sizes[0]], prior.first_logits.expand(len(z), -1)), sizes[0]
        for maps, size in zip(self.prior_maps, sizes[1:], strict=True):
            total += bernoulli.log_prob(z[:, start : start + size], _apply(maps, zeta[:, :start]))
            start += size
        return total


def _pixel_maps(model: FeedForward) -> list[Affine]:
    """The maps of the decoder, which include the fixed output bias and, for a centred code, the step to 2ζ - 1."""
    assert isinstance(model.decoder, Dense)
    maps = model.decoder.frozen()
    if model.centered_code:
        weight, bias = maps[0]
        maps[0] = Affine(2 * weight, bias - weight.sum(1))
    maps[-1] = Affine(maps[-1].weight, maps[-1].bias + model.output_bias)
    return maps


def _apply(maps: list[Affine], x: Tensor) -> Tensor:
    return _after_first(maps, linear(x, *maps[0]))


def _after_first(maps: list[Affine], first: Tensor) -> Tensor:
    """The rest of a network, given the first map's output, which is overwritten."""
    for weight, bias in maps[1:]:
        first = linear(first.tanh_(), weight, bias)
    return first


class _Chunk:
    """The noise of `rows` rows, a function of its seed alone."""

    def __init__(self, seed: int, device: torch.device, rows: int) -> None:
        self.rows = rows
        self.generator = torch.Generator(device).manual_seed(seed)
        self.noise = Noise(self.generator, device)

    def uniform(self, units: int) -> Tensor:
        return uniform(self.rows, units, generator=self.generator, device=self.generator.device)


def _seed(generator: torch.Generator | None, device: torch.device) -> int:
    return int(torch.randint(0, 2**63 - 1, (), generator=generator, device=device))


def _threshold(chunks: list[_Chunk], logits: Tensor, out: Tensor) -> None:
    """out = 1[u < sigmoid(logits)], where logits of all types are compared in float32."""
    sizes = [chunk.rows for chunk in chunks]
    spent = logits.to(torch.float32, copy=True)  # a threshold may overwrite its logits
    zeros = spent.new_zeros(spent.shape[1])
    drawn = out if out.dtype == torch.float32 else torch.empty_like(spent)
    for chunk, part, target in zip(chunks, spent.split(sizes), drawn.split(sizes), strict=True):
        chunk.noise.threshold_(part, zeros, zeros, None, target)
    if drawn is not out:
        out.copy_(drawn)
