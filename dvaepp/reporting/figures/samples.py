"""Fig. 4: samples of trained models, one panel per run; five in a row share a sample of the global units."""

from collections.abc import Sequence

import matplotlib
from matplotlib.figure import Figure
from torch import Tensor

from dvaepp.reporting.drawing import STYLE
from dvaepp.reporting.images import grid

SIDE = 4.2  # inches of a panel


def draw(panels: Sequence[tuple[str, Tensor]]) -> Figure:
    """`panels`: titles and images (n, channels, height, width), ten to a row."""
    columns = min(3, len(panels))
    rows = -(-len(panels) // columns)
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(SIDE * columns, (SIDE + 0.25) * rows), layout="constrained")
        places = figure.subplots(rows, columns, squeeze=False).flat
        for axes, (title, images) in zip(places, panels, strict=False):
            axes.imshow(grid(images, 10), cmap="gray", vmin=0, vmax=255, interpolation="nearest")
            axes.set_title(title, loc="left")
    for axes in figure.axes:
        axes.axis("off")
    return figure
