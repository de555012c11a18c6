"""Plots of what the studies measured, from their records: precision by bits, and curves of three quantisers."""

from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from benchmarks.record import ROOT
from benchmarks.studies.record import FOLDER, read

IMAGES = ROOT / "docs" / "images"
COLOURS = ("#2a78d6", "#d9660f", "#2f9e6e", "#8a5cc2", "#b8860b", "#c2417a", "#5a6472")


def draw(folder: Path = FOLDER, images: Path = IMAGES) -> list[Path]:
    """Write the plots of the records that there are."""
    figures = {"codes-retrieval": ("retrieval", retrieval), "codes-quantizer": ("quantizer", quantizer)}
    written = []
    for name, (study, figure) in figures.items():
        record = read(study, folder)
        if record is not None:
            written.append(images / f"{name}.png")
            figure(record).savefig(written[-1], dpi=110)
    return written


def retrieval(record: dict[str, Any]) -> Figure:
    """precision@k with intervals over the number of bits; raw pixels as a band, since they have no length."""
    figure = Figure(figsize=(7.5, 4), layout="constrained")
    axes = figure.subplots()
    methods = list(dict.fromkeys(row["method"] for row in record["rows"]))
    for place, (method, colour) in enumerate(zip(methods, COLOURS * 2, strict=False)):
        rows = [row for row in record["rows"] if row["method"] == method]
        if rows[0]["bits"] is None:
            axes.axhspan(rows[0]["precision"]["low"], rows[0]["precision"]["high"], color="#c8ccd2", label=method)
        else:
            _with_intervals(axes, rows, colour, method, shift=1 + 0.012 * (place - len(methods) / 2))
    bits = record["settings"]["bits"]
    axes.set_xscale("log", base=2)
    axes.set_xticks(bits, [str(each) for each in bits])
    axes.minorticks_off()
    axes.set_xlabel("bits of a code")
    axes.set_ylabel(f"precision@{record['k']}")
    axes.grid(axis="y", alpha=0.3)
    figure.legend(loc="outside right upper", frameon=False)
    return figure


def _with_intervals(axes: Axes, rows: list[dict[str, Any]], colour: str, label: str, shift: float) -> None:
    bits = np.array([row["bits"] for row in rows]) * shift  # beside one another, so that no bar hides another
    value, low, high = (np.array([row["precision"][key] for row in rows]) for key in ("value", "low", "high"))
    style: dict[str, Any] = {"ls": "--" if label.endswith("reranked") else "-", "marker": "o", "ms": 4, "capsize": 3}
    axes.errorbar(bits, value, [value - low, high - value], color=colour, label=label, **style)


def quantizer(record: dict[str, Any]) -> Figure:
    """PSNR and entropy of codes after every epoch, a line for the mean of the seeds and a dot for each seed."""
    figure = Figure(figsize=(9, 3.6), layout="constrained")
    panels = {"psnr": "PSNR in dB", "code entropy": "entropy of codes in bits"}
    for axes, (key, title) in zip(figure.subplots(1, 2), panels.items(), strict=True):
        for (name, histories), colour in zip(record["histories"].items(), COLOURS, strict=False):
            finished = [history for history in histories if isinstance(history, list)]
            _curves(axes, finished, key, colour, name)
        axes.set_xlabel("epoch")
        axes.set_title(title, fontsize=10)
        axes.grid(alpha=0.3)
    axes.axhline(record["settings"]["bits"], color="#5a6472", lw=1, ls=":")
    handles, labels = axes.get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=3, frameon=False)
    return figure


def _curves(axes: Axes, histories: list[list[dict[str, float]]], key: str, colour: str, label: str) -> None:
    if not histories:
        return
    epochs = [each["epoch"] for each in histories[0]]
    values = np.array([[each[key] for each in history] for history in histories])
    axes.plot(epochs, values.mean(0), color=colour, lw=1.6, label=label)
    axes.plot(epochs, values.T, ".", color=colour, ms=5)
