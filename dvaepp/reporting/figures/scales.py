"""Fig. 8 (App. G.1): which scale of the conditional decoder generates each pixel, from the decoder's own masks."""

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from dvaepp.models.decoder import Canvas
from dvaepp.reporting.drawing import STYLE

COLOURS = ["#e8736b", "#6fbf73", "#7c8fd9", "#e3b34a"]


def draw(device: str = "cpu") -> Figure:
    """The paper's 16 × 16 image with scales 4, 8, 16, and a 28 × 28 image padded to 32 as the models see it."""
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(8, 4.7), layout="constrained")
        figure.get_layout_engine().set(wspace=0.06)  # type: ignore[union-attr, call-arg]
        axes = figure.subplots(1, 2)
        _panel(axes[0], Canvas(16, 16, 16, 3), "16 × 16 (the paper's figure)")
        _panel(axes[1], Canvas(28, 28, 32, 4), "28 × 28, padded to 32")
    return figure


def _panel(axes: Axes, canvas: Canvas, title: str) -> None:
    owner = canvas.owner()
    height, width = owner.shape
    for row in range(height):
        for column in range(width):
            colour = COLOURS[int(owner[row, column])]
            axes.add_patch(Rectangle((column, row), 1, 1, facecolor=colour, edgecolor="white", linewidth=0.5))
    axes.set_xlim(0, width)
    axes.set_ylim(height, 0)
    axes.set_aspect("equal")
    axes.axis("off")
    counts = [int((owner == index).sum()) for index in range(len(canvas.scales))]
    handles = [Rectangle((0, 0), 1, 1, facecolor=COLOURS[i]) for i in range(len(counts))]
    labels = [f"scale {s}: {n} pixels" for s, n in zip(canvas.scales, counts, strict=True)]
    axes.legend(handles, labels, loc="upper left", bbox_to_anchor=(-0.02, 0), ncols=2)
    axes.set_title(title, loc="left")
