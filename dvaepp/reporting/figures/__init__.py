"""Figures, one file each; the file's stem, with dashes, is the figure's name on the command line.

Those of the paper that show data or code have a `draw(device)`, those about runs a `draw(runs)`; each returns a
matplotlib Figure. The page of a run shows the panels of the latter.
"""

import importlib
import io
from collections.abc import Sequence
from pathlib import Path

from matplotlib.figure import Figure

from dvaepp.errors import UsageError
from dvaepp.files import write_durably
from dvaepp.reporting.run import Run


def save(name: str, out: Path, device: str = "cpu") -> None:
    """Draw figure `name` and write it to `out`; the ending chooses the format."""
    module = importlib.import_module(f"{__name__}.{name.replace('-', '_')}")
    write(module.draw(device), out)


def save_of_runs(name: str, runs: Sequence[Run], out: Path) -> None:
    """Draw figure `name` of runs. Those without anything to show are named."""
    module = importlib.import_module(f"{__name__}.{name.replace('-', '_')}")
    empty = [run.name for run in runs if not module.panels([run] if name == "curves" else run)]
    if empty:
        raise UsageError(f"{', '.join(empty)}: nothing to draw for {name!r}; `dvaepp report` says what the run holds")
    write(module.draw(runs), out)


def write(figure: Figure, out: Path) -> None:
    formats = figure.canvas.get_supported_filetypes()
    ending = out.suffix.lstrip(".").lower()
    if ending not in formats:
        raise UsageError(f"cannot write a figure to {out}: use an ending such as .png, .pdf or .svg")
    contents = io.BytesIO()
    figure.savefig(contents, format=ending, dpi=150)
    write_durably(out, contents.getvalue())
