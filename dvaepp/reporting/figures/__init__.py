"""Figures, one file each; the file's stem, with dashes, is the figure's name on the command line.

Those that need no run have a `draw(device)`, which returns a matplotlib Figure. Those about runs have `panels(run)`,
which the page of a run shows too; `of_runs` puts those of several runs together.
"""

import importlib
import io
from collections.abc import Sequence
from pathlib import Path

from matplotlib.figure import Figure

from dvaepp.errors import UsageError
from dvaepp.files import write_durably
from dvaepp.reporting.panels import together
from dvaepp.reporting.run import Run


def without_runs(name: str, device: str = "cpu") -> Figure:
    """Figure `name`, one of those that need no run."""
    return importlib.import_module(f"{__name__}.{name.replace('-', '_')}").draw(device)


def of_runs(name: str, runs: Sequence[Run]) -> Figure:
    """Figure `name` of runs: "curves" has all runs in each panel; "kl", "units" and "rbm" have panels for each run."""
    module = importlib.import_module(f"{__name__}.{name}")
    parts = [(run.name, module.panels(run)) for run in runs]
    if empty := [run for run, panels in parts if not panels]:
        raise UsageError(f"{', '.join(empty)}: nothing to draw for {name!r}; `dvaepp report` says what the run holds")
    return module.draw(runs) if name == "curves" else together(parts)


def write(figure: Figure, out: Path) -> None:
    """Write a figure whole or not at all; the ending of the file's name chooses the format."""
    formats = figure.canvas.get_supported_filetypes()
    ending = out.suffix.lstrip(".").lower()
    if ending not in formats:
        raise UsageError(f"cannot write a figure to {out}: use an ending such as .png, .pdf or .svg")
    contents = io.BytesIO()
    figure.savefig(contents, format=ending, dpi=150)
    write_durably(out, contents.getvalue())
