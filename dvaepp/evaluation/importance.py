"""log p(x) by importance samples from the posterior, in the binary limit (Sec. 7: ζ = z) or at the training β (App. I).

    log p(x) ≈ log 1/K Σ_k w_k,   w = p(x|ζ) p(z) / q(z|x),   z ~ q,   ζ = z, or ζ ~ r(ζ|z): r cancels in w.

Samples come in blocks with a running log-sum-exp in float64, so memory does not grow with K. What depends on x alone,
its share of the encoders' first layers and the first group's logits, is computed once per image.
"""

import math

import torch
from torch import Tensor
from torch.nn.functional import softplus

from dvaepp.models.feedforward import FeedForward
from dvaepp.networks.dense import Dense
from dvaepp.numerics import uniform
from dvaepp.smoothing.base import Smoothing

ROWS = 2048  # samples x images decoded at once: logits of 784 pixels then fit the cache
CHUNK = 8  # samples whose noise is drawn together, whatever the block: its size then changes rounding only


@torch.no_grad()
def log_likelihood(
    model: FeedForward,
    x: Tensor,
    num_samples: int,
    *,
    log_z: float = 0.0,
    smoothing: Smoothing | None = None,
    generator: torch.Generator | None = None,
    rows: int = ROWS,
) -> Tensor:
    """(batch,) float64 estimates for images x (batch, pixels) of 0 and 1; `smoothing` None is the binary limit.

    `log_z` is that of a Boltzmann prior; a directed one ignores it. The model is put in evaluation mode.
    """
    if num_samples < 1:
        raise ValueError(f"num_samples must be at least 1, got {num_samples}")
    model.eval()
    per_block = max(1, rows // (len(x) * CHUNK)) * CHUNK
    encoders = [net for net in model.encoders if isinstance(net, Dense)]
    centered = x - model.train_mean
    first_layers = [net.first_part(centered, 0) + _bias(net) for net in encoders]
    first_logits = encoders[0].after_first(first_layers[0])
    top = torch.full((len(x),), -math.inf, dtype=torch.float64, device=x.device)
    total = torch.zeros_like(top)
    done = 0
    while done < num_samples:
        k = min(per_block, num_samples - done)
        log_w = _log_weights(model, x, encoders, first_layers, first_logits, k, smoothing, generator).double()
        new_top = torch.maximum(top, log_w.amax(0))
        total = total * (top - new_top).exp() + (log_w - new_top).exp().sum(0)
        top = new_top
        done += k
    estimate = top + total.log() - math.log(num_samples)
    return estimate - log_z if model.prior is not None else estimate


def _bias(net: Dense) -> Tensor | float:
    bias = net.layers[0].bias
    return bias if isinstance(bias, Tensor) else 0.0


def _log_weights(
    model: FeedForward,
    x: Tensor,
    encoders: list[Dense],
    first_layers: list[Tensor],
    first_logits: Tensor,
    k: int,
    smoothing: Smoothing | None,
    generator: torch.Generator | None,
) -> Tensor:
    """log w up to log Z, (k, batch)."""
    pixels = x.shape[-1]
    noise = _noise(model.group_sizes, k, len(x), 1 if smoothing is None else 2, generator, x.device)
    z: list[Tensor] = []
    zeta: list[Tensor] = []
    log_q = x.new_zeros(k, len(x))
    for a, net in enumerate(encoders):
        logits = first_logits.expand(k, *first_logits.shape)
        if a > 0:
            logits = net.after_first(first_layers[a] + net.first_part(torch.cat(zeta, -1), pixels))
        z.append((noise[0][a] < torch.sigmoid(logits)).to(x.dtype))
        log_q += bernoulli_log_prob(z[-1], logits)
        zeta.append(z[-1] if smoothing is None else _smoothed(z[-1], smoothing, noise[1][a]))
    if model.prior is not None:
        log_p = -model.prior.energy(torch.cat(z, -1))
    else:
        prior_logits = model.prior_logits(zeta)
        log_p = sum(
            (bernoulli_log_prob(s, p) for s, p in zip(z, prior_logits, strict=True)), start=torch.zeros_like(log_q)
        )
    return bernoulli_log_prob(x, model.pixel_logits(zeta)) + log_p - log_q


def bernoulli_log_prob(x: Tensor, logits: Tensor) -> Tensor:
    """Σ x l - log(1 + e^l) over the last axis."""
    return (x * logits).sum(-1) - softplus(logits).sum(-1)


def _smoothed(z: Tensor, smoothing: Smoothing, rho: Tensor) -> Tensor:
    """ζ ~ r(ζ|z): the mixture of a certain unit."""
    return smoothing.sample(torch.where(z == 1, torch.inf, -torch.inf), rho)


def _noise(
    sizes: list[int], k: int, batch: int, kinds: int, generator: torch.Generator | None, device: torch.device
) -> list[list[Tensor]]:
    """Uniform noise [kind][group] of shape (k, batch, units), drawn chunk by chunk."""
    drawn = []
    for start in range(0, k, CHUNK):
        n = min(CHUNK, k - start)
        drawn.append([uniform(n, batch, u, generator=generator, device=device) for _ in range(kinds) for u in sizes])
    joined = [torch.cat(parts) for parts in zip(*drawn, strict=True)]
    return [joined[i : i + len(sizes)] for i in range(0, len(joined), len(sizes))]
