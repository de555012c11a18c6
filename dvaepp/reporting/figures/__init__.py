"""The paper's figures that show data or code; one file each, a `draw(device)` that returns a matplotlib Figure.

The file's stem, with dashes, is the figure's name on the command line.
"""

import importlib
import os
from pathlib import Path

from matplotlib.figure import Figure

from dvaepp.errors import UsageError


def save(name: str, out: Path, device: str = "cpu") -> None:
    """Draw figure `name` and write it to `out`; the ending chooses the format."""
    module = importlib.import_module(f"{__name__}.{name.replace('-', '_')}")
    write(module.draw(device), out)


def write(figure: Figure, out: Path) -> None:
    formats = figure.canvas.get_supported_filetypes()
    ending = out.suffix.lstrip(".").lower()
    if ending not in formats:
        raise UsageError(f"cannot write a figure to {out}: use an ending such as .png, .pdf or .svg")
    out.parent.mkdir(parents=True, exist_ok=True)
    partial = out.with_name(f".{out.name}.{os.getpid()}.partial")
    try:
        figure.savefig(partial, format=ending, dpi=150)
        partial.replace(out)  # a failure leaves whatever was there before
    finally:
        partial.unlink(missing_ok=True)
