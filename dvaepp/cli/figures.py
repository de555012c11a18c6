"""Figures of the paper and of runs: `figure`."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import tyro

from dvaepp.cli.arguments import Debug, Device, argument, usable_device
from dvaepp.errors import UsageError

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from dvaepp.reporting.run import Run

FigureName = Literal["smoothing", "inverse-cdf", "scales", "bounds", "samples", "curves", "kl", "units", "rbm"]
OF_RUNS = ("samples", "curves", "kl", "units", "rbm")


def figure(
    name: tyro.conf.Positional[Annotated[FigureName, argument("Which figure.", "NAME")]],
    runs: tyro.conf.Positional[
        Annotated[tuple[Path, ...], argument("Run directories, for the figures of runs.", "[RUN ...]")]
    ] = (),
    out: Annotated[
        Path | None,
        argument("The file to write, as its ending says: .png, .pdf or .svg. Without it: NAME.png here.", "FILE"),
    ] = None,
    device: Device = "cpu",
    debug: Debug = False,
) -> None:
    """Draw a figure of the paper, or of runs.

      smoothing    Fig. 1: the exponential smoothing and its inverse CDF
      inverse-cdf  Fig. 5: inverse CDFs of three smoothings, and their gradients
      scales       Fig. 8: the pixels that each scale of the decoder generates
      samples      Fig. 4: samples of the runs given
      bounds       how close each bound with a Boltzmann prior comes to log p(x)
      curves       the training of the runs given
      kl           the KL of each group, over the training of the runs given
      units        how active the units of the runs given are
      rbm          the Boltzmann prior of the runs given, and its chains

    Examples:
        dvaepp figure smoothing --out smoothing.pdf
        dvaepp figure curves runs/demo runs/other --out curves.png
    """
    out = out or Path(f"{name}.png")
    if (name in OF_RUNS) != bool(runs):
        raise UsageError(
            f"`figure {name}` takes no runs" if runs else f"`figure {name}` needs at least one run directory"
        )
    from dvaepp.reporting import figures

    device = usable_device(device)
    if name == "samples":
        drawn = _samples(runs, device)
    elif runs:
        drawn = figures.of_runs(name, [_read_run(folder, device) for folder in runs])
    else:
        drawn = figures.without_runs(name, device)
    figures.write(drawn, out)
    print(f"wrote {out}")


def _samples(folders: tuple[Path, ...], device: str) -> "Figure":
    from dvaepp import runs
    from dvaepp.reporting.drawing import plain
    from dvaepp.reporting.figures.samples import draw
    from dvaepp.reporting.images import sampled
    from dvaepp.reporting.numbers import count

    panels = []
    for folder in folders:
        trained = runs.load(folder, device=device)
        about = f"{trained.recipe.name} on {trained.record['dataset']}, step {count(trained.record['step'])}"
        panels.append((plain(f"{folder.resolve().name}: {about}"), sampled(trained).cpu()))
    return draw(panels)


def _read_run(folder: Path, device: str) -> "Run":
    from dvaepp import pretrained, runs
    from dvaepp.reporting.run import read

    folder = pretrained.folder(folder)
    return read(folder, runs.read_recipe(folder), lambda say: runs.load(folder, device=device, say=say))
