"""Look at a run: `sample`, `reconstruct`, `inpaint`, `report`."""

from pathlib import Path
from typing import Annotated, Literal

import tyro

from dvaepp.cli.arguments import (
    DataDir,
    Debug,
    Device,
    Pixels,
    RunDir,
    Split,
    argument,
    at_least,
    png_file,
    usable_device,
)
from dvaepp.errors import UsageError

Picture = Annotated[Path, argument("The picture to write.", "FILE.png")]


def sample(
    run: tyro.conf.Positional[RunDir],
    out: Picture = Path("samples.png"),
    rows: Annotated[int, argument("Rows of ten images.", "N")] = 10,
    per_code: Annotated[
        int | None, argument("Images per sample of the global units. Without it: 5 with local units, else 1.", "N")
    ] = None,
    pixels: Pixels = "mean",
    seed: Annotated[int, argument("The same seed draws the same images.", "N")] = 0,
    device: Device = "cpu",
    debug: Debug = False,
) -> None:
    """Draw images from the prior, ten to a row.

    With local units five in a row share a sample of the global ones.

    Examples:
        dvaepp sample mnist-rbm
        dvaepp sample runs/demo --rows 4 --seed 7 --pixels drawn --out drawn.png
    """
    from dvaepp import runs
    from dvaepp.reporting.images import sampled, save_grid

    png_file(out)
    at_least(1, "--rows", rows)
    at_least(1, "--per-code", per_code)
    if not -(2**63) <= seed < 2**64:
        raise UsageError(f"--seed must be a number of at most 64 bits, got {seed}")
    trained = runs.load(run, device=device)
    save_grid(sampled(trained, 10 * rows, per_code=per_code, seed=seed, mean=pixels == "mean"), 10, out)
    print(f"wrote {out}")


def reconstruct(
    run: tyro.conf.Positional[RunDir],
    out: Picture = Path("reconstructions.png"),
    rows: Annotated[int, argument("Rows of five pairs.", "N")] = 8,
    split: Split = "test",
    pixels: Pixels = "mean",
    data_dir: DataDir = None,
    device: Device = "cpu",
    debug: Debug = False,
) -> None:
    """Show images beside their reconstructions, five pairs to a row.

    Examples:
        dvaepp reconstruct mnist-rbm
        dvaepp reconstruct runs/demo --split train --rows 2 --out pairs.png
    """
    from dvaepp import coding, runs
    from dvaepp.reporting.images import reconstructed, save_grid

    png_file(out)
    at_least(1, "--rows", rows)
    trained = runs.load(run, device=device)
    x = coding.chosen(trained, coding.Which(split=split, limit=5 * rows, data_dir=data_dir)).x
    save_grid(reconstructed(trained, x, mean=pixels == "mean"), 10, out)
    print(f"wrote {out}")


def inpaint(
    run: tyro.conf.Positional[RunDir],
    out: Picture = Path("inpainted.png"),
    hide: Annotated[
        Literal["bottom", "top", "left", "right", "centre", "random"],
        argument("A half, the square in the centre, or half of all pixels at random."),
    ] = "bottom",
    rows: Annotated[int, argument("Images, one to a row.", "N")] = 8,
    completions: Annotated[int, argument("Completions of each image.", "N")] = 8,
    rounds: Annotated[int, argument("Rounds of the chain; half of them are kept.", "N")] = 400,
    proposals: Annotated[int, argument("Proposals of the encoder in a round.", "N")] = 16,
    split: Split = "test",
    data_dir: DataDir = None,
    device: Device = "cpu",
    debug: Debug = False,
) -> None:
    """Complete images of which a part is hidden.

    A row shows an image, what is seen of it, completions, and their mean. Completions are samples of p(hidden pixels |
    seen pixels). For binary images it is told how likely the true hidden pixels are by the means given the seen ones,
    and by the model's means without them.

    Examples:
        dvaepp inpaint mnist-rbm
        dvaepp inpaint runs/demo --hide centre --rows 4 --out centre.png
    """
    import torch

    from dvaepp import coding, runs
    from dvaepp.evaluation.hidden import hidden_log_likelihood, seen_pixels
    from dvaepp.reporting.images import save_grid

    png_file(out)
    for option, value in (("--rows", rows), ("--completions", completions), ("--proposals", proposals)):
        at_least(1, option, value)
    at_least(4, "--rounds", rounds)
    trained = runs.load(run, device=device)
    x = coding.chosen(trained, coding.Which(split=split, limit=rows, data_dir=data_dir)).x
    x = x.to(trained.device, trained.dtype)
    generator = torch.Generator(device).manual_seed(0)
    seen = seen_pixels(hide, x.shape[1:], torch.Generator("cpu").manual_seed(0)).to(x.device)
    found = trained.inpaint(x, seen, generator, num_samples=completions, num_rounds=rounds, num_proposals=proposals)
    shown = [trained.shown(images) for images in (x, *found.samples, found.mean)]
    shown.insert(1, torch.where(seen, shown[0], 0.5))
    save_grid(torch.stack(shown, 1).flatten(0, 1), len(shown), out)
    print(f"wrote {out}: image, what is seen of it, {completions} completions, their mean")
    print(f"the latents moved in {found.moved:.0%} of the rounds")
    if bool(((x == 0) | (x == 1)).all()):
        alone = trained.sample(1000, generator).mean(0)
        given = [hidden_log_likelihood(mean, x, seen).mean().item() for mean in (found.mean, alone)]
        print(
            f"hidden pixels: {given[0]:.1f} nat an image by the means given the seen ones, {given[1]:.1f} without them"
        )


def report(
    run: tyro.conf.Positional[RunDir],
    out: Annotated[Path | None, argument("The page to write. Without it: report.html in the run.", "FILE.html")] = None,
    data_dir: DataDir = None,
    device: Device = "cpu",
    debug: Debug = False,
) -> None:
    """Write one HTML page about a run.

    Curves, samples, the prior, the evaluations and the recipe, in one file that needs nothing else.

    Examples:
        dvaepp report runs/demo
        dvaepp report runs/demo --out demo.html
    """
    from dvaepp import api

    print(f"wrote {api.report(run, out, device=usable_device(device), data_dir=data_dir)}")
