"""log p(x) of DVAE++ by importance samples over z and h together, in the binary limit or at the training β (App. I).

    w = p(x|ζ, h) p(z) p(h|ζ) / (q(z|x) q(h|x, ζ)),   z ~ q, ζ = z or ζ ~ r(ζ|z), h ~ q:   r cancels.

Images are encoded once; their share of the local networks is reused by every sample.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from dvaepp.evaluation.importance import streamed_log_mean
from dvaepp.models.dvaepp import DVAE, Encoded, Posterior
from dvaepp.models.noise import Noise
from dvaepp.smoothing.base import Smoothing

ROWS = 400  # samples x images at once


@torch.no_grad()
def log_likelihood(
    model: DVAE,
    x: Tensor,
    num_samples: int,
    *,
    log_z: float = 0.0,
    smoothing: Smoothing | Sequence[Smoothing] | None = None,
    generator: torch.Generator | None = None,
    rows: int = ROWS,
) -> Tensor:
    """(batch,) float64 estimates for images x (batch, channels, height, width); `smoothing` None: binary limit."""
    model.eval()
    encoded = model.encode(x)
    noise = Noise(generator, x.device)

    def draw(k: int) -> Tensor:
        return _log_weights(model, x, encoded, k, smoothing, noise)

    estimate = streamed_log_mean(draw, num_samples, max(1, rows // len(x)))
    return estimate - log_z if model.prior is not None else estimate


def _log_weights(
    model: DVAE,
    x: Tensor,
    encoded: Encoded,
    k: int,
    smoothing: Smoothing | Sequence[Smoothing] | None,
    noise: Noise,
) -> Tensor:
    """log w up to log Z, (k, batch)."""
    q = Posterior(model, encoded.repeated(k), noise, smoothing, exact=True)
    drawn = model.top_down(q, k * len(x))
    log_w = model.decoder(drawn.features, model.canvas.pad(x).repeat(k, 1, 1, 1))
    z = [group.scored for group in drawn.zeta]
    for parameters, value in zip(q.global_parameters, z, strict=True):
        log_w = log_w - model.global_latent.log_prob(parameters, value)
    if model.prior is not None:
        log_w = log_w - model.prior.energy(torch.cat(z, 1))
    elif z:
        for parameters, value in zip(model.global_priors(), z, strict=True):
            log_w = log_w + model.global_latent.log_prob(parameters.expand(len(value), -1), value)
    priors = model.local_priors(drawn)
    for mine, prior, group in zip(q.local_parameters, priors, drawn.h, strict=True):
        latent = model.local_latent
        log_w = log_w + latent.log_prob(prior, group.scored) - latent.log_prob(mine, group.scored)
    return log_w.reshape(k, len(x))
