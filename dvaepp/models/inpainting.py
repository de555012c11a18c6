"""Inpainting: samples of p(x_hidden | x_seen) by a Markov chain over the latents ℓ and the hidden pixels.

The stationary distribution of the chain is the exact posterior

    p(ℓ, x_hidden | x_seen) ∝ p(ℓ) p(x|ℓ),   x = (x_seen, x_hidden),

however good or bad the encoder is: the encoder only proposes latents, and importance weights correct its proposals. A
round makes two moves, each of which keeps this distribution:

1.  Latents given x. Draw K proposals ℓ_1 ... ℓ_K ~ q(ℓ|x), join the present ℓ_0, and choose ℓ_k with probability
    w_k / Σ_j w_j, where w = p(ℓ) p(x|ℓ) / q(ℓ|x): iterated sampling importance resampling (Andrieu, Lee and Vihola
    2018). To see that p(ℓ|x) stays, let ℓ_0 have it and put it at a random place among the K + 1: the joint
    distribution of the K + 1 latents is then Π q(ℓ_j|x) Σ_j w_j / (K + 1) up to a constant, and given all of them
    the place has probability w_j / Σ w. Choosing the place again changes nothing. log Z cancels in the ratio.
2.  Hidden pixels given ℓ. The decoder draws an image scale by scale with seen pixels held at their values, which has
    the probability g(x'_hidden|ℓ). It is accepted with the Metropolis-Hastings probability

        min(1, [p(x'|ℓ) / g(x'_hidden|ℓ)] / [p(x|ℓ) / g(x_hidden|ℓ)]) = min(1, s(x') / s(x)),

    where s(x) = Π_{i seen} p(x_i | ℓ, coarser pixels of x). Where pixels are independent given ℓ, s does not depend on
    x_hidden, and every draw is accepted: it is a Gibbs move.

The first rounds accept every proposal without weights (pseudo-Gibbs, Rezende et al. 2014): this moves quickly from
arbitrary pixels to likely ones. It samples another distribution than p, so these rounds are thrown away. Latents are in
the binary limit, ζ = z (Sec. 7).
"""

from typing import NamedTuple, Protocol, runtime_checkable

import torch
from torch import Tensor

from dvaepp.errors import UsageError
from dvaepp.models.noise import repeated

Latents = list[Tensor]
"""All latents of a model, one tensor (rows, ...) for each group."""


@runtime_checkable
class Completes(Protocol):
    """What inpainting asks of a model; rows of images and of latents belong together."""

    def draw_latents(self, x: Tensor, generator: torch.Generator | None) -> Latents:
        """A draw ℓ ~ q(ℓ|x) in the binary limit."""

    def latent_log_weight(self, x: Tensor, latents: Latents) -> Tensor:
        """log p(ℓ) p(x|ℓ) / q(ℓ|x), (rows,), up to log Z."""

    def redraw(self, x: Tensor, seen: Tensor, latents: Latents, generator: torch.Generator | None) -> Tensor:
        """x with its hidden pixels drawn from the decoder, which takes the seen ones as they are."""

    def log_seen(self, x: Tensor, seen: Tensor, latents: Latents) -> Tensor:
        """log s(x), (rows,), up to what does not depend on the hidden pixels."""

    def expected_pixels(self, x: Tensor, latents: Latents) -> Tensor:
        """The mean of each pixel given ℓ where pixels are independent, otherwise x itself."""


class Inpainted(NamedTuple):
    """Completed images, seen pixels as given.

    `samples` (num_samples, batch, channels, height, width) are the last of each chain.
    `mean` (batch, channels, height, width) is the mean of p(x_hidden|x_seen) over all chains and rounds that were kept;
    `moved` is the share of rounds in which the latents changed: near 0 the chains hardly move, and need more proposals.
    """

    samples: Tensor
    mean: Tensor
    moved: float


@torch.no_grad()
def inpaint(
    model: Completes,
    x: Tensor,
    seen: Tensor,
    *,
    start: Tensor,
    num_samples: int = 8,
    num_rounds: int = 200,
    num_proposals: int = 8,
    generator: torch.Generator | None = None,
) -> Inpainted:
    """Complete images x (batch, channels, height, width) where `seen` of the same shape is false.

    `start` (num_samples · batch, channels, height, width) fills the hidden pixels at first. The first quarter of the
    rounds moves without weights, the second quarter lets the chain settle, and samples come from the second half.
    """
    if min(num_samples, num_proposals) < 1 or num_rounds < 4:
        raise UsageError(
            f"inpainting needs num_samples and num_proposals of at least 1 and num_rounds of at least 4, "
            f"got {num_samples}, {num_proposals} and {num_rounds}"
        )
    rows, known = repeated(x, num_samples), repeated(seen, num_samples)
    image = torch.where(known, rows, start)
    latents = model.draw_latents(image, generator)
    mean, kept, moves = torch.zeros_like(x), 0, 0.0
    for round_ in range(num_rounds):
        if round_ < num_rounds // 4:
            latents = model.draw_latents(image, generator)
        else:
            latents, moved = _resampled(model, image, latents, num_proposals, generator)
            moves += moved
        image = _redrawn(model, image, known, latents, generator)
        if round_ >= num_rounds // 2:
            mean += model.expected_pixels(image, latents).reshape(num_samples, *x.shape).mean(0)
            kept += 1
    mean = torch.where(seen, x, mean / kept)
    return Inpainted(image.reshape(num_samples, *x.shape), mean, moves / (num_rounds - num_rounds // 4))


def _resampled(
    model: Completes, x: Tensor, latents: Latents, num_proposals: int, generator: torch.Generator | None
) -> tuple[Latents, float]:
    """The first move of a round: new latents, and the share of rows in which they changed."""
    proposed = model.draw_latents(repeated(x, num_proposals), generator)
    among = [torch.cat([mine, theirs]) for mine, theirs in zip(latents, proposed, strict=True)]
    log_w = model.latent_log_weight(repeated(x, num_proposals + 1), among).reshape(num_proposals + 1, len(x))
    probability = torch.softmax(log_w.double(), 0).t()
    chosen = torch.multinomial(probability, 1, generator=generator)[:, 0]
    place = chosen * len(x) + torch.arange(len(x), dtype=torch.int64, device=x.device)
    return [group[place] for group in among], (chosen > 0).double().mean().item()


def _redrawn(model: Completes, x: Tensor, seen: Tensor, latents: Latents, generator: torch.Generator | None) -> Tensor:
    """The second move of a round: new hidden pixels, where they are accepted."""
    other = model.redraw(x, seen, latents, generator)
    log_ratio = model.log_seen(other, seen, latents) - model.log_seen(x, seen, latents)
    uniform = torch.rand(len(x), generator=generator, dtype=torch.float32, device=x.device)
    accepted = uniform.log() < log_ratio
    return torch.where(accepted.reshape(-1, *(1 for _ in x.shape[1:])), other, x)
