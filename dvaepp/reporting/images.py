"""Sheets of images as PNG."""

import io
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from dvaepp.files import write_durably
from dvaepp.models.trained import Trained

GAP = 2  # grey pixels between images
ZOOM = 2


def sampled(
    trained: Trained, number: int = 100, *, per_code: int | None = None, seed: int = 0, mean: bool = True
) -> Tensor:
    """Images of the prior with levels in [0, 1], in which `per_code` in a row share a sample of the global units.

    Without `per_code` several images share one where latents vary below the global units; see `Trained.sample` for
    `mean`.
    """
    per_code = per_code or trained.model.images_per_code
    generator = torch.Generator(trained.device).manual_seed(seed)
    images = trained.sample(-(-number // per_code), generator, per_code, mean)
    return trained.shown(images[:number])


def reconstructed(trained: Trained, x: Tensor, *, mean: bool = True) -> Tensor:
    """Each image of x, as the model takes them, and after it its reconstruction, with levels in [0, 1]."""
    found = trained.reconstruct(x, torch.Generator(trained.device).manual_seed(0), mean).to(x)
    return trained.shown(torch.stack([x.reshape(found.shape), found], 1).flatten(0, 1))


def grid(images: Tensor, columns: int) -> np.ndarray:
    """Images (n, channels, height, width), `columns` to a row, on a grey ground; levels in [0, 1]."""
    n, channels, height, width = images.shape
    rows = -(-n // columns)
    sheet = np.full((rows * (height + GAP) + GAP, columns * (width + GAP) + GAP, channels), 128, dtype=np.uint8)
    pixels = (images.clamp(0, 1) * 255).round().byte().permute(0, 2, 3, 1).cpu().numpy()
    for index, image in enumerate(pixels):
        top, left = (
            GAP + place * (size + GAP) for place, size in zip(divmod(index, columns), (height, width), strict=True)
        )
        sheet[top : top + height, left : left + width] = image
    return sheet[..., 0] if channels == 1 else sheet


def png(images: Tensor, columns: int) -> bytes:
    """A grid of images, twice as large, as the contents of a PNG file."""
    picture = Image.fromarray(grid(images, columns))
    picture = picture.resize((picture.width * ZOOM, picture.height * ZOOM), Image.Resampling.NEAREST)
    contents = io.BytesIO()
    picture.save(contents, format="PNG", optimize=True)
    return contents.getvalue()


def save_grid(images: Tensor, columns: int, out: Path) -> None:
    """Write a grid of images as PNG, whole or not at all."""
    write_durably(out, png(images, columns))
