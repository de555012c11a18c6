"""Fig. 4: samples of trained models, one panel per run; five in a row share a sample of the global units."""

from collections.abc import Mapping

from matplotlib.figure import Figure
from torch import Tensor

from dvaepp.reporting.images import grid


def draw(panels: Mapping[str, Tensor]) -> Figure:
    """`panels`: title -> images (n, channels, height, width), ten to a row."""
    figure = Figure(figsize=(4.2 * len(panels), 4.6), layout="constrained")
    for axes, (title, images) in zip(figure.subplots(1, len(panels), squeeze=False)[0], panels.items(), strict=True):
        axes.imshow(grid(images, 10), cmap="gray", vmin=0, vmax=255, interpolation="nearest")
        axes.set_title(title, fontsize=8)
        axes.axis("off")
    return figure
