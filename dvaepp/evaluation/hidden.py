"""Which pixels inpainting hides, and how well their completions foretell them."""

from collections.abc import Sequence
from typing import Literal, get_args

import torch
from torch import Tensor

from dvaepp.errors import UsageError

Hidden = Literal["bottom", "top", "left", "right", "centre", "random"]


def seen_pixels(hide: str, image_shape: Sequence[int], generator: torch.Generator | None = None) -> Tensor:
    """True where a pixel is seen, (channels, height, width), for images of which one part is hidden.

    The part is a half, the square in the centre of half the height and width, or half of all pixels at random.

    >>> seen = seen_pixels("bottom", (1, 28, 28))
    """
    if hide not in get_args(Hidden):
        raise UsageError(f"what to hide must be one of {', '.join(get_args(Hidden))}, got {hide!r}")
    channels, height, width = image_shape
    if hide == "random":
        seen = torch.rand(height, width, generator=generator, dtype=torch.float32, device="cpu") < 0.5
    else:
        rows, columns = slice(None), slice(None)
        parts = {
            "bottom": (slice(height // 2, None), columns),
            "top": (slice(None, height // 2), columns),
            "left": (rows, slice(None, width // 2)),
            "right": (rows, slice(width // 2, None)),
            "centre": (slice(height // 4, height - height // 4), slice(width // 4, width - width // 4)),
        }
        seen = torch.ones(height, width, dtype=torch.bool, device="cpu")
        seen[parts[hide]] = False
    return seen.expand(channels, -1, -1)


def hidden_log_likelihood(mean: Tensor, x: Tensor, seen: Tensor) -> Tensor:
    """Σ log p(x_i) over hidden binary pixels, (batch,), if each had this mean by itself; in float64.

    `mean` broadcasts to x (batch, channels, height, width): the mean given the seen pixels, or one for all images.
    """
    if not bool(((x == 0) | (x == 1)).all()):
        raise UsageError("the log-likelihood of hidden pixels is that of binary ones: these images have other values")
    p = mean.double().expand_as(x).clamp(1e-6, 1 - 1e-6)
    each = torch.where(x.bool(), p.log(), torch.log1p(-p))
    return (each * ~seen.expand_as(x)).flatten(1).sum(1)
