"""Panels: small plots that stand alone on a page or together in a figure, from the same drawing function.

On a page a panel is SVG inside the HTML. Its colours become CSS variables there (`--ink`, `--blue`, ...), so that it
follows the page from light to dark; in a figure they are what `COLOURS` says.
"""

import io
import re
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure

COLOURS = {
    "ink": "#1b1f24",
    "muted": "#59636e",
    "rule": "#d8dde3",
    "blue": "#1d66c1",
    "orange": "#b5500b",
    "green": "#18794e",
    "purple": "#7d4cc9",
}
SERIES = [COLOURS[name] for name in ("blue", "orange", "green", "purple")]
RUN_COLOURS = [*SERIES, "#a8326e", "#0f7280", "#7a6a00", "#59636e"]
SIZE = (3.9, 2.4)  # inches; 9 points on it are about 10 pixels on a phone
STYLE: Any = {
    "font.size": 9,
    "text.color": COLOURS["ink"],
    "axes.edgecolor": COLOURS["muted"],
    "axes.labelcolor": COLOURS["muted"],
    "axes.linewidth": 0.7,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.grid.axis": "y",
    "axes.axisbelow": True,
    "axes.titlesize": 10,
    "axes.formatter.limits": (-4, 5),
    "grid.color": COLOURS["rule"],
    "grid.linewidth": 0.7,
    "xtick.color": COLOURS["muted"],
    "ytick.color": COLOURS["muted"],
    "xtick.major.size": 3,
    "ytick.major.size": 0,
    "ytick.minor.size": 0,
    "legend.frameon": False,
    "legend.fontsize": 8.5,
    "legend.handlelength": 1.4,
    "legend.columnspacing": 1.2,
    "lines.solid_capstyle": "round",
}


class Panel(NamedTuple):
    """`alt` says in words what the plot shows; `draw` fills axes and leaves their title alone."""

    title: str
    alt: str
    draw: Callable[[Axes], None]


def together(rows: Sequence[tuple[str, Sequence[Panel]]]) -> Figure:
    """Panels in rows of three; each entry starts a row of its own under its title, where that is not empty."""
    cut = [(title, panels[start : start + 3]) for title, panels in rows for start in range(0, len(panels), 3)]
    columns = max(len(panels) for _, panels in cut)
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(SIZE[0] * columns, (SIZE[1] + 0.4) * len(cut)), layout="constrained")
        parts = figure.subfigures(len(cut), 1, squeeze=False)[:, 0]
        shown = ""
        for part, (title, panels) in zip(parts, cut, strict=True):
            if title != shown:
                part.suptitle(plain(title), x=0.01, ha="left", fontsize=11, fontweight="bold")
                shown = title
            grid = part.subplots(1, columns, squeeze=False)[0]
            for axes, panel in zip(grid, panels, strict=False):
                panel.draw(axes)
                axes.set_title(panel.title, loc="left", pad=6 + 12 * _legend_rows(axes))
            for axes in grid[len(panels) :]:
                axes.remove()
    return figure


def svg(panel: Panel, prefix: str) -> str:
    """The panel as an <svg> element for an HTML page; `prefix` keeps its ids apart from those of other panels."""
    with matplotlib.rc_context({**STYLE, "svg.fonttype": "none", "svg.hashsalt": prefix}):
        figure = Figure(figsize=SIZE)
        axes = figure.subplots()
        panel.draw(axes)
        # the same margins in every panel, so that they line up on the page; room for the rows of a legend
        figure.subplots_adjust(left=0.15, right=0.96, bottom=0.19, top=0.96 - 0.08 * _legend_rows(axes))
        written = io.StringIO()
        figure.savefig(written, format="svg", transparent=True)
    return _for_html(written.getvalue(), prefix)


def legend_columns(labels: Sequence[str]) -> int:
    """Side by side where they fit into the width of a panel, otherwise two to a row."""
    return len(labels) if sum(map(len, labels)) <= 34 else 2


def _legend_rows(axes: Axes) -> int:
    legend = axes.get_legend()
    labels = [] if legend is None else [text.get_text() for text in legend.get_texts()]
    return -(-len(labels) // legend_columns(labels)) if labels else 0


def _for_html(text: str, prefix: str) -> str:
    box = re.search(r'viewBox="([^"]+)"', text)
    assert box is not None
    text = re.sub(r"<metadata>.*?</metadata>|<style.*?</style>|<!--.*?-->", "", text, flags=re.DOTALL)
    text = re.sub(r"^.*?<svg[^>]*>", "", text, count=1, flags=re.DOTALL)
    text = text.replace("xlink:href", "href")
    referred = set(re.findall(r'href="#([^"]+)"', text)) | set(re.findall(r"url\(#([^)]+)\)", text))
    text = re.sub(r' id="([^"]+)"', lambda m: f' id="{prefix}-{m[1]}"' if m[1] in referred else "", text)
    text = re.sub(r'href="#', f'href="#{prefix}-', text).replace("url(#", f"url(#{prefix}-")
    text = re.sub(r' (?:d|x|y|transform|width|height)="[^"]*"', _rounded, text)
    for name, colour in COLOURS.items():
        text = text.replace(colour, f"var(--{name})")
    text = re.sub(r"\s*\n\s*", "\n", text)
    return f'<svg viewBox="{box[1]}" aria-hidden="true" focusable="false">{text}'


def _rounded(attribute: re.Match[str]) -> str:
    """Hundredths of a point are finer than any screen; six decimals double the size of a page."""
    return re.sub(r"-?\d+\.\d{3,}", lambda number: f"{float(number[0]):.2f}".rstrip("0").rstrip("."), attribute[0])


def plain(text: str) -> str:
    """A label as it is: matplotlib reads $ as mathematics and hides labels that start with an underscore."""
    text = text.replace("$", r"\$")
    return f"\u200b{text}" if text.startswith("_") else text
