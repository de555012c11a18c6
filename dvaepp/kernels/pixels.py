"""Between the layout of maps, (rows, channels, height, width), and the pixel-major one, (pixels, rows, channels)."""

from torch import Tensor


def to_pixels(x: Tensor) -> Tensor:
    """(rows, channels, height, width) -> (pixels, rows, channels)."""
    return x.permute(2, 3, 0, 1).flatten(0, 1)


def to_maps(x: Tensor, size: int) -> Tensor:
    """(pixels, rows, channels) -> (rows, channels, size, size), without copying."""
    return x.unflatten(0, (size, size)).permute(2, 3, 0, 1)
