"""Panels: small plots that stand alone on a page or together in a figure, from the same drawing function.

On a page a panel is SVG inside the HTML. Its colours become CSS variables there (`--ink`, `--blue`, ...), so that it
follows the page from light to dark; in a figure they are what `COLOURS` says.
"""

import io
import re
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import matplotlib
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from dvaepp.reporting.drawing import COLOURS, ROW, STYLE, lift_legend, plain, rows_above

SIZE = (3.9, 2.4)  # inches; 9 points on it are about 10 pixels on a phone
LEFT, RIGHT, BOTTOM, TOP = 0.6, 0.16, 0.46, 0.1  # margins of a plot in its panel, in inches
HEADLINE = 0.24  # above the panels of a run, with its name
TITLE = 0.24  # above a plot, with what it shows
KEY = 0.24  # a row of the key below all panels


class Panel(NamedTuple):
    """`alt` says in words what the plot shows; `draw` fills axes and leaves their title alone."""

    title: str
    alt: str
    draw: Callable[[Axes], None]


class FigureRow(NamedTuple):
    """Panels side by side, and what stands above them: the name of their run, and the rows of the tallest legend."""

    headline: str
    plots: list[tuple[Panel, Axes]]

    @property
    def above(self) -> float:
        legend = max(rows_above(axes) for _, axes in self.plots) * ROW / 72
        return TOP + TITLE + legend + (HEADLINE if self.headline else 0)


def together(parts: Sequence[tuple[str, Sequence[Panel]]], keys: Sequence[Mapping[str, Artist]] = ()) -> Figure:
    """Panels on a grid where all plots have one size and line up; each part starts a row under its name, if it has one.

    `keys` are legends for all panels, from labels to lines, below them.
    """
    columns = _columns([len(panels) for _, panels in parts])
    with matplotlib.rc_context(STYLE):
        figure = Figure()
        rows = [
            FigureRow(plain(name) if start == 0 else "", _drawn(figure, panels[start : start + columns]))
            for name, panels in parts
            for start in range(0, len(panels), columns)
        ]
        _arrange(figure, rows, columns, keys)
    return figure


def _columns(numbers: Sequence[int]) -> int:
    """Three or four to a row, whichever leaves fewer places empty; as many as there are, if they are fewer."""
    return min(max(numbers), min((3, 4), key=lambda columns: sum(-number % columns for number in numbers)))


def _drawn(figure: Figure, panels: Sequence[Panel]) -> list[tuple[Panel, Axes]]:
    plots = []
    for panel in panels:
        axes = figure.add_axes((0.0, 0.0, 1.0, 1.0), label=str(len(figure.axes)))  # its place comes later
        panel.draw(axes)
        plots.append((panel, axes))
    return plots


def _arrange(figure: Figure, rows: Sequence[FigureRow], columns: int, keys: Sequence[Mapping[str, Artist]]) -> None:
    """Give everything its place, from the top down."""
    width, plot = SIZE[0] * columns, SIZE[1] - BOTTOM - TOP
    height = sum(row.above + plot + BOTTOM for row in rows) + KEY * sum(-(-len(key) // columns) for key in keys)
    figure.set_size_inches(width, height)
    y = height
    for row in rows:
        if row.headline:
            figure.text(0.1 / width, (y - 0.08) / height, row.headline, fontsize=11, fontweight="bold", va="top")
        y -= row.above + plot
        legend = max(rows_above(axes) for _, axes in row.plots)
        for column, (panel, axes) in enumerate(row.plots):
            left = column * SIZE[0] + LEFT
            axes.set_position((left / width, y / height, (SIZE[0] - LEFT - RIGHT) / width, plot / height))
            axes.set_title(panel.title, loc="left", pad=6 + ROW * legend)
            lift_legend(axes, (legend - rows_above(axes)) * ROW / 72 / plot)
        y -= BOTTOM
    for key in keys:
        place = (LEFT / width, y / height)
        figure.legend([*key.values()], [*key], loc="upper left", bbox_to_anchor=place, ncols=columns, borderpad=0)
        y -= KEY * -(-len(key) // columns)


def svg(panel: Panel, prefix: str) -> str:
    """The panel as an <svg> element for an HTML page; `prefix` keeps its ids apart from those of other panels."""
    with matplotlib.rc_context({**STYLE, "svg.fonttype": "none", "svg.hashsalt": prefix}):
        figure = Figure(figsize=SIZE)
        axes = figure.subplots()
        panel.draw(axes)
        # the same margins in every panel, so that they line up on the page; room for the rows of a legend
        width, height = SIZE
        above = TOP + ROW / 72 * rows_above(axes)
        figure.subplots_adjust(
            left=LEFT / width, right=1 - RIGHT / width, bottom=BOTTOM / height, top=1 - above / height
        )
        written = io.StringIO()
        figure.savefig(written, format="svg", transparent=True)
    return _for_html(written.getvalue(), prefix)


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
