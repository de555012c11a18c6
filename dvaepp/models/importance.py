"""log p(x) by importance samples from the posterior, in the binary limit (Sec. 7: ζ = z) or at the training β (App. I).

    log p(x) ≈ log 1/K Σ_k w_k,   w = p(x|ζ) p(z) / q(z|x),   z ~ q,   ζ = z, or ζ ~ r(ζ|z): r cancels in w.

Samples come in blocks with a running log-sum-exp in float64, so memory does not grow with K.
"""

import math
from collections.abc import Callable

import torch
from torch import Tensor

from dvaepp.models.base import Model, Smoothings


@torch.no_grad()
def log_likelihood(
    model: Model,
    x: Tensor,
    num_samples: int,
    *,
    log_z: float = 0.0,
    smoothing: Smoothings | None = None,
    generator: torch.Generator | None = None,
    rows: int | None = None,
) -> Tensor:
    """(batch,) float64 estimates for images x (batch, channels, height, width); `smoothing` None is the binary limit.

    `log_z` is that of a Boltzmann prior; other models ignore it. At most about `rows` samples x images are in memory at
    a time. The model is put in evaluation mode.
    """
    model.eval()
    if len(x) == 0:
        return x.new_zeros(0, dtype=torch.float64)
    chunk = model.samples_in_chunk
    per_block = max(1, (rows or model.rows_at_once) // (len(x) * chunk)) * chunk
    estimate = streamed_log_mean(model.log_weights(x, smoothing, generator), num_samples, per_block)
    return estimate - log_z if model.boltzmann is not None else estimate


def streamed_log_mean(draw: Callable[[int], Tensor], num_samples: int, per_block: int) -> Tensor:
    """log 1/K Σ_k w_k of K = `num_samples` log weights, float64; draw(k) returns the next k of them, (k, batch).

    Choose it for log means of more weights than fit into memory.

    >>> streamed_log_mean(lambda k: torch.zeros(k, 3), num_samples=1000, per_block=100).shape
    torch.Size([3])
    """
    if num_samples < 1:
        raise ValueError(f"num_samples must be at least 1, got {num_samples}")
    running: Tensor | None = None
    for start in range(0, num_samples, per_block):
        block = torch.logsumexp(draw(min(per_block, num_samples - start)).double(), 0)
        running = block if running is None else torch.logaddexp(running, block)
    assert running is not None
    return running - math.log(num_samples)
