"""Sheets of images as PNG."""

import io
from pathlib import Path

import numpy as np
from PIL import Image
from torch import Tensor

from dvaepp.files import write_durably

GAP = 2


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


def png(images: Tensor, columns: int, zoom: int = 2) -> bytes:
    """A grid of images as the contents of a PNG file."""
    picture = Image.fromarray(grid(images, columns))
    picture = picture.resize((picture.width * zoom, picture.height * zoom), Image.Resampling.NEAREST)
    contents = io.BytesIO()
    picture.save(contents, format="PNG", optimize=True)
    return contents.getvalue()


def save_grid(images: Tensor, columns: int, out: Path, zoom: int = 2) -> None:
    """Write a grid of images as PNG, whole or not at all."""
    write_durably(out, png(images, columns, zoom))
