"""The command line: one function per command. torch is imported only by the commands that need it."""

import os
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, NoReturn

import tyro

from dvaepp import spinning
from dvaepp.errors import UsageError, to_stderr
from dvaepp.version import __version__

if TYPE_CHECKING:
    from dvaepp.codes import Neighbours
    from dvaepp.coding import Found
    from dvaepp.reporting.run import Run
    from dvaepp.reproduction.plan import Task

FigureName = Literal["smoothing", "inverse-cdf", "scales", "bounds", "samples", "curves", "kl", "units", "rbm"]
OF_RUNS = ("samples", "curves", "kl", "units", "rbm")
Split = Literal["train", "validation", "test"]
Device = Annotated[str, tyro.conf.arg(help="Where to compute, e.g. cpu or cuda.", metavar="DEVICE")]
Pixels = Annotated[
    Literal["mean", "drawn"],
    tyro.conf.arg(help="Show each pixel's mean, or draw the pixels: a sample of p(x)."),
]
Debug = Annotated[bool, tyro.conf.arg(help="Show the traceback of a failure.")]
DataDir = Annotated[
    Path | None,
    tyro.conf.arg(metavar="DIR", help="Where data sets lie; then $DVAEPP_DATA, the user's cache, a download."),
]
RunDir = Annotated[Path, tyro.conf.arg(metavar="RUN", help="A run directory.")]
ImagesPath = Annotated[
    Path | None, tyro.conf.arg(metavar="PATH", help="A folder of images or an array instead of a split.")
]
Limit = Annotated[int | None, tyro.conf.arg(metavar="N", help="Only N images, drawn with a fixed seed.")]
Overrides = Annotated[
    tyro.conf.UseAppendAction[list[str]],
    tyro.conf.arg(
        name="set", metavar="PATH=VALUE", help="Change any field of the recipe, e.g. training.steps=60000; repeatable."
    ),
]
RecipeName = Annotated[str, tyro.conf.arg(metavar="RECIPE", help="One of `dvaepp recipes`.")]
Arguments = Annotated[
    tuple[str, ...], tyro.conf.arg(metavar="KEY=VALUE", help="Arguments of the recipe, e.g. layers=2 linear=false.")
]


def train(
    recipe: tyro.conf.Positional[RecipeName] = "demo",
    arguments: tyro.conf.Positional[Arguments] = (),
    set_: Overrides = [],  # noqa: B006 tyro reads it as "none given"
    run_dir: Annotated[Path | None, tyro.conf.arg(metavar="DIR", help="Where the run is written.")] = None,
    data_dir: DataDir = None,
    resume: Annotated[
        bool, tyro.conf.arg(help="Continue the run in --run-dir; its recipe is read from there.")
    ] = False,
    device: Device = "cpu",
    debug: Debug = False,
) -> None:
    """Train a model: dvaepp train table2.rbm layers=2 linear=false --set training.steps=60000."""
    from dvaepp import ranks, recipes, runs, training

    device = _device(device)
    if resume:
        if run_dir is None:
            raise UsageError("--resume needs --run-dir, the run to continue")
        chosen = recipes.override(runs.read_recipe(run_dir), set_)
    else:
        chosen = recipes.build(recipe, arguments, set_)
    run_dir = run_dir or Path("runs") / f"{chosen.name}-{time.strftime('%Y%m%d-%H%M%S')}"
    with ranks.joined(device) as device:
        run_dir = Path(ranks.from_first(str(run_dir)))  # its name may hold the time
        chosen.model.check_buildable()
        training.train(chosen, run_dir, data_dir=data_dir, resume=resume, device=device)
        first = ranks.rank() == 0
    if first:
        _pictures(run_dir, data_dir, device)
        print(run_dir)


def _pictures(run_dir: Path, data_dir: Path | None, device: str) -> None:
    sample(run_dir, out=run_dir / "samples" / "samples.png", device=device)
    reconstruct(run_dir, out=run_dir / "samples" / "reconstructions.png", data_dir=data_dir, device=device)


def evaluate(
    run: tyro.conf.Positional[RunDir],
    split: Split = "test",
    samples: Annotated[
        int | None, tyro.conf.arg(metavar="K", help="Importance samples; default: the recipe's.")
    ] = None,
    limit: Annotated[int | None, tyro.conf.arg(metavar="N", help="Only N images, drawn with a fixed seed.")] = None,
    beta: Annotated[
        Literal["inf", "training"] | None,
        tyro.conf.arg(
            help="The binary limit, or the smoothed model of App. I; default: the recipe's, inf but for App. I."
        ),
    ] = None,
    data_dir: DataDir = None,
    json: Annotated[bool, tyro.conf.arg(help="Print the result as JSON and nothing else on stdout.")] = False,
    device: Device = "cpu",
    debug: Debug = False,
) -> None:
    """Importance-weighted log-likelihood of a run, with log Z and an error bar. evaluation.json keeps the best one of
    the run's model: on the test set, then of more images, then with more samples; evaluations.jsonl has all of them."""
    from dvaepp import ranks, runs

    with ranks.joined(_device(device)) as device:
        runs.evaluate(
            run,
            split=split,
            num_samples=samples,
            limit=limit,
            beta=beta,
            data_dir=data_dir,
            device=device,
            show=lambda result: _print_evaluation(result, json),
        )


def _print_evaluation(result: dict[str, Any], as_json: bool) -> None:
    from json import dumps

    if as_json:
        print(dumps(result, indent=1), flush=True)
        return
    error = result["standard_error"]
    shown = "nats, no error bar" if error is None else f"± {error:.2f} nats"
    images = "one image" if result["num_images"] == 1 else f"{result['num_images']} images"
    print(
        f"{result['dataset']} {result['split']}: log p(x) = {result['log_likelihood']:.2f} {shown} "
        f"(K = {result['num_samples']}, {images}, {result['bits_per_dim']:.4f} bits per dimension)",
        flush=True,
    )
    if average := result.get("average"):
        log_z = f", log Z = {average['log_partition']['value']:.3f}" if average["log_partition"] else ""
        print(f"averaged weights: log p(x) = {average['log_likelihood']:.2f}{log_z}", flush=True)
    if partition := result["log_partition"]:
        error = partition["standard_error"]
        print(f"log Z = {partition['value']:.3f} ± {error:.3f} ({partition['method']})", flush=True)
        for warning in partition["diagnostics"].get("warnings", []):
            to_stderr(f"warning: {warning}")


def compare(
    run: tyro.conf.Positional[RunDir],
    other: tyro.conf.Positional[
        Annotated[Path | None, tyro.conf.arg(metavar="OTHER", help="The run to compare with; default: RUN itself.")]
    ] = None,
    json: Annotated[bool, tyro.conf.arg(help="Print the result as JSON and nothing else on stdout.")] = False,
    debug: Debug = False,
) -> None:
    """Log-likelihoods of RUN minus those of OTHER, image by image, with the standard error of the mean difference. Both
    have to be evaluated on the same images. Averaged weights of RUN are compared too, where it has them."""
    from json import dumps

    from dvaepp.evaluation import paired

    mine, theirs = paired.read(run), paired.read(other or run)
    weights = [name for name in mine.log_likelihood if other is not None or name != "trained"]
    if not weights:
        raise UsageError(f"{run} has no averaged weights to compare with its own: name another run")
    found = {name: paired.difference(mine, theirs, name) for name in weights}
    if json:
        print(dumps({name: each._asdict() for name, each in found.items()}, indent=1))
        return
    for name, each in found.items():
        print(
            f"{name} weights of {run} - {other or run}: {each.value:+.3f} ± {each.standard_error:.3f} nats "
            f"({each.num_images} images; ± {each.image_error:.3f} over images, the rest is log Z)"
        )


def encode(
    run: tyro.conf.Positional[RunDir],
    out: Annotated[Path, tyro.conf.arg(metavar="FILE.npz")] = Path("bits.npz"),
    split: Split = "test",
    data_dir: DataDir = None,
    images: Annotated[
        Path | None, tyro.conf.arg(metavar="PATH", help="Encode a folder of images or an array instead of a split.")
    ] = None,
    device: Device = "cpu",
    debug: Debug = False,
) -> None:
    """Binary codes of a split, or of given images, as a bool array `bits` (images, units)."""
    import io

    import numpy as np

    from dvaepp import runs
    from dvaepp.files import write_durably

    trained = runs.load(run, device=_device(device))
    if images is not None:
        x = trained.recipe.data.read_images(images)
    else:
        x = runs.dataset_of(trained.recipe, data_dir).images(split)
    bits = runs.for_each(x, trained.encode).bool().cpu().numpy()
    contents = io.BytesIO()
    np.savez_compressed(contents, bits=bits)
    write_durably(out, contents.getvalue())
    print(f"wrote {bits.shape[0]} codes of {bits.shape[1]} bits to {out}")


def index(
    run: tyro.conf.Positional[RunDir],
    out: Annotated[Path, tyro.conf.arg(metavar="FILE.npz")] = Path("index.npz"),
    images: ImagesPath = None,
    split: Split = "train",
    limit: Limit = None,
    data_dir: DataDir = None,
    device: Device = "cpu",
    debug: Debug = False,
) -> None:
    """Codes of images, packed into a file for `dvaepp search`; labels go along where the data set has them."""
    from dvaepp import coding, runs
    from dvaepp.codes.index_file import write

    trained = runs.load(run, device=_device(device))
    made = coding.make_index(trained, coding.Which(images, split, limit, data_dir))
    write(out, made)
    print(f"wrote {len(made.index)} codes of {made.index.num_bits} bits to {out}")


def search(
    run: tyro.conf.Positional[RunDir],
    index: tyro.conf.Positional[Annotated[Path, tyro.conf.arg(metavar="INDEX", help="A file of `dvaepp index`.")]],
    images: ImagesPath = None,
    split: Split = "test",
    limit: Limit = None,
    k: Annotated[int, tyro.conf.arg(metavar="K", help="Neighbours of each query.")] = 10,
    rerank: Annotated[
        int, tyro.conf.arg(metavar="N", help="Order the N nearest by posterior means and keep K; 0: by distance alone.")
    ] = 0,
    threads: Annotated[int, tyro.conf.arg(metavar="N", help="Threads that share the codes.")] = 1,
    out: Annotated[
        Path | None, tyro.conf.arg(metavar="FILE", help="Distances and indices as .npz, or queries and hits as .png.")
    ] = None,
    json: Annotated[bool, tyro.conf.arg(help="Print the result as JSON and nothing else on stdout.")] = False,
    data_dir: DataDir = None,
    device: Device = "cpu",
    debug: Debug = False,
) -> None:
    """The images of an index whose codes are nearest to those of queries; precision and mAP where both have labels."""
    from dvaepp import coding, runs
    from dvaepp.codes.index_file import read
    from dvaepp.reporting.images import save_grid

    if out is not None and out.suffix not in (".npz", ".png"):
        raise UsageError(f"{out} must end in .npz or .png")
    trained = runs.load(run, device=_device(device))
    stored = read(index, memory_map=True)
    queries = coding.chosen(trained, coding.Which(images, split, limit, data_dir))
    found = coding.search(trained, stored, queries, k, threads, rerank)
    if out is not None and out.suffix == ".png":
        shown = coding.hits_beside_queries(trained, stored, queries.x, found.neighbours, data_dir)
        save_grid(shown, 1 + k, out)
    elif out is not None:
        _write_hits(out, found.neighbours)
    _print_hits(found, json)


def _write_hits(out: Path, hits: "Neighbours") -> None:
    import io

    import numpy as np

    from dvaepp.files import write_durably

    contents = io.BytesIO()
    np.savez_compressed(contents, distances=hits.distances, indices=hits.indices)
    write_durably(out, contents.getvalue())


def _print_hits(found: "Found", as_json: bool) -> None:
    from json import dumps

    from dvaepp.coding import SHOWN

    hits, quality = found
    if as_json:
        measured = (
            None
            if quality is None
            else {
                "k": quality.k,
                "num_queries": quality.num_queries,
                "precision": quality.precision._asdict(),
                "mean_average_precision": quality.mean_average_precision._asdict(),
            }
        )
        print(dumps({"distances": hits.distances.tolist(), "indices": hits.indices.tolist(), "quality": measured}))
        return
    for query, (distances, indices) in enumerate(zip(hits.distances[:SHOWN], hits.indices[:SHOWN], strict=True)):
        shown = "  ".join(f"{i}:{d:g}" for i, d in zip(indices.tolist(), distances.tolist(), strict=True))
        print(f"query {query:<5} {shown}")
    if len(hits.indices) > SHOWN:
        print(f"and {len(hits.indices) - SHOWN} more; --out FILE.npz writes all")
    if quality is not None:
        value, low, high = quality.precision
        mean, lowest, highest = quality.mean_average_precision
        print(
            f"precision@{quality.k} = {value:.4f} ({low:.4f} to {high:.4f}), mAP = {mean:.4f} ({lowest:.4f} to "
            f"{highest:.4f}), 95 % intervals over {quality.num_queries} queries"
        )


def compress(
    run: tyro.conf.Positional[RunDir],
    images: tyro.conf.Positional[ImagesPath] = None,
    out: Annotated[Path, tyro.conf.arg(metavar="FILE")] = Path("images.dvaeppz"),
    split: Split = "test",
    limit: Limit = None,
    data_dir: DataDir = None,
    debug: Debug = False,
) -> None:
    """Binary images, losslessly in about as many bits as the bound says: bits-back coding with the run's model.

    Any machine with the same run gets them back exactly, whatever its threads and kernels. Models with directed priors
    and with small Boltzmann priors can do it.
    """
    from dvaepp import coding, runs
    from dvaepp.files import write_durably

    made, pixels = coding.compress(runs.load(run), coding.Which(images, split, limit, data_dir))
    write_durably(out, made.data)
    rate = 8 * len(made.data) / pixels if pixels else 0.0
    print(f"wrote {len(made.bits)} images in {len(made.data)} bytes, {rate:.4f} bits per pixel, to {out}")


def decompress(
    run: tyro.conf.Positional[RunDir],
    archive: tyro.conf.Positional[Annotated[Path, tyro.conf.arg(metavar="FILE", help="What `compress` wrote.")]],
    out: Annotated[Path, tyro.conf.arg(metavar="FILE.npz")] = Path("images.npz"),
    debug: Debug = False,
) -> None:
    """The images of an archive as an array `images` (n, height, width); the run must be the one that made it."""
    import io

    import numpy as np

    from dvaepp import coding, runs
    from dvaepp.files import write_durably

    found = coding.decompress(runs.load(run), archive)
    contents = io.BytesIO()
    np.savez_compressed(contents, images=found[:, 0] if found.shape[1] == 1 else found)
    write_durably(out, contents.getvalue())
    print(f"wrote {len(found)} images to {out}")


def sample(
    run: tyro.conf.Positional[RunDir],
    out: Annotated[Path, tyro.conf.arg(metavar="FILE.png")] = Path("samples.png"),
    rows: Annotated[int, tyro.conf.arg(metavar="N", help="Rows of ten images.")] = 10,
    per_code: Annotated[
        int | None,
        tyro.conf.arg(metavar="N", help="Images per sample of the global units; default 5 with local units."),
    ] = None,
    pixels: Pixels = "mean",
    seed: int = 0,
    device: Device = "cpu",
    debug: Debug = False,
) -> None:
    """Images from the prior, ten to a row. With local units five in a row share a sample of the global ones."""
    import torch

    from dvaepp import runs
    from dvaepp.reporting.images import save_grid

    if rows < 1:
        raise UsageError(f"--rows must be at least 1, got {rows}")
    trained = runs.load(run, device=_device(device))
    per_code = per_code or trained.model.images_per_code
    if per_code < 1:
        raise UsageError(f"--per-code must be at least 1, got {per_code}")
    generator = torch.Generator(device).manual_seed(seed)
    images = trained.sample(-(-10 * rows // per_code), generator, per_code, mean=pixels == "mean")
    save_grid(trained.shown(images[: 10 * rows]), 10, out)
    print(f"wrote {out}")


def reconstruct(
    run: tyro.conf.Positional[RunDir],
    out: Annotated[Path, tyro.conf.arg(metavar="FILE.png")] = Path("reconstructions.png"),
    rows: Annotated[int, tyro.conf.arg(metavar="N", help="Rows of five pairs.")] = 8,
    split: Split = "test",
    pixels: Pixels = "mean",
    data_dir: DataDir = None,
    device: Device = "cpu",
    debug: Debug = False,
) -> None:
    """Images beside their reconstructions, five pairs to a row."""
    import torch

    from dvaepp import runs
    from dvaepp.data import subset
    from dvaepp.reporting.images import save_grid

    if rows < 1:
        raise UsageError(f"--rows must be at least 1, got {rows}")
    trained = runs.load(run, device=_device(device))
    dataset = runs.dataset_of(trained.recipe, data_dir)
    x = dataset.images(split, subset(len(dataset.split(split)), 5 * rows))
    found = trained.reconstruct(x, torch.Generator(device).manual_seed(0), mean=pixels == "mean")
    pairs = torch.stack([x, found.to(x)], 1)
    save_grid(trained.shown(pairs.flatten(0, 1)), 10, out)
    print(f"wrote {out}")


def inpaint(
    run: tyro.conf.Positional[RunDir],
    out: Annotated[Path, tyro.conf.arg(metavar="FILE.png")] = Path("inpainted.png"),
    hide: Literal["bottom", "top", "left", "right", "centre", "random"] = "bottom",
    rows: Annotated[int, tyro.conf.arg(metavar="N", help="Images, one to a row.")] = 8,
    completions: Annotated[int, tyro.conf.arg(metavar="N", help="Completions of each image.")] = 8,
    rounds: Annotated[int, tyro.conf.arg(metavar="N", help="Rounds of the chain; half of them are kept.")] = 400,
    proposals: Annotated[int, tyro.conf.arg(metavar="N", help="Proposals of the encoder in a round.")] = 16,
    split: Split = "test",
    data_dir: DataDir = None,
    device: Device = "cpu",
    debug: Debug = False,
) -> None:
    """Complete images of which a part is hidden: image, what is seen of it, completions, their mean.

    Completions are samples of p(hidden pixels | seen pixels). For binary images it is told how likely the true hidden
    pixels are by the means given the seen ones, and by the model's means without them.

    Args:
        hide: A half, the square in the centre, or half of all pixels at random.
    """
    import torch

    from dvaepp import runs
    from dvaepp.data import subset
    from dvaepp.evaluation.hidden import hidden_log_likelihood, seen_pixels
    from dvaepp.reporting.images import save_grid

    if rows < 1:
        raise UsageError(f"--rows must be at least 1, got {rows}")
    trained = runs.load(run, device=_device(device))
    dataset = runs.dataset_of(trained.recipe, data_dir)
    x = dataset.images(split, subset(len(dataset.split(split)), rows)).to(trained.device, trained.dtype)
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


def recipes(debug: Debug = False) -> None:
    """What can be trained."""
    from inspect import getdoc, signature

    from dvaepp.recipes import functions

    known = functions()
    width = max(map(len, known))
    for name, function in sorted(known.items()):
        arguments = " ".join(f"{p.name}={p.default}" for p in signature(function).parameters.values())
        print(f"{name:{width}} {(getdoc(function) or '').splitlines()[0]}\n{'':{width}} {arguments}")


def show(
    recipe: tyro.conf.Positional[RecipeName],
    arguments: tyro.conf.Positional[Arguments] = (),
    set_: Overrides = [],  # noqa: B006
    debug: Debug = False,
) -> None:
    """One recipe resolved in full, as JSON; on stderr its modules, the maps they end at, parameters and memory."""
    from dvaepp.recipes import budget, build

    chosen = build(recipe, arguments, set_)
    print(chosen.model_dump_json(indent=1))
    if chosen.data.path is None:  # the size of a user's own images is not known here
        from dvaepp.training.state import example_model

        for row in example_model(chosen).summary():
            print(f"{row.module:24} {row.blocks:24} {row.output:16} {row.parameters:>12,}", file=sys.stderr)
        print(f"memory: at most about {budget.cost(chosen).total(chosen) / 2**30:.1f} GiB", file=sys.stderr)


def data(
    action: tyro.conf.Positional[Literal["list", "fetch", "check"]],
    name: tyro.conf.Positional[Annotated[str | None, tyro.conf.arg(metavar="NAME")]] = None,
    data_dir: DataDir = None,
    debug: Debug = False,
) -> None:
    """List the data sets, fetch one with its checksums verified, or check the files that are there.

    Args:
        action: What to do.
        name: Which data set; fetch and check take all without a name.
    """
    from dvaepp import data as sets

    chosen = [name] if name else sets.names()
    failures, offline = 0, False
    for each in chosen:
        if action == "list":
            print(f"{each:16} {sets.describe(each)}")
            continue
        if offline and not sets.here(each, data_dir):
            failures += 1
            print(f"{each:16} not here", file=sys.stderr)
            continue
        try:
            paths = (sets.fetch if action == "fetch" else sets.check)(each, data_dir)
            replaced = action == "check" and sets.stand_in(each, data_dir)
            state = "stand-in, other pixels than the published file:" if replaced else "ok "
            print(f"{each:16} {state} {', '.join(str(p) for p in paths)}")
        except (OSError, UsageError) as error:
            if name:
                raise
            failures += 1
            offline |= isinstance(error, sets.NoNetwork)
            print(f"{each:16} {' '.join(str(error).split())}", file=sys.stderr)
    if failures:
        raise OSError(f"{failures} of {len(chosen)} data sets failed")


def figure(
    name: tyro.conf.Positional[FigureName],
    runs: tyro.conf.Positional[Annotated[tuple[Path, ...], tyro.conf.arg(metavar="RUN")]] = (),
    out: Annotated[Path | None, tyro.conf.arg(metavar="FILE")] = None,
    device: Device = "cpu",
    debug: Debug = False,
) -> None:
    """Draw a figure of the paper: "smoothing" is Fig. 1, the exponential smoothing and its inverse CDF;
    "inverse-cdf" is Fig. 5 (App. C), inverse CDFs of three smoothings and their gradients; "scales" is Fig. 8, the
    pixels that each scale of the conditional decoder generates; "samples" is Fig. 4, samples of the runs given. Beyond
    the paper, "bounds" shows how close each bound with a Boltzmann prior comes to log p(x). Or draw runs: "curves" of
    training, "kl" per group, active "units", the "rbm" and its chains.

    Args:
        name: Which figure.
        runs: Run directories, for "samples", "curves", "kl", "units" and "rbm".
        out: File to write; its ending (.png, .pdf, .svg) chooses the format. Without it NAME.png is written here.
    """
    out = out or Path(f"{name}.png")
    if (name in OF_RUNS) != bool(runs):
        raise UsageError(f"{name} takes no runs" if runs else f"`figure {name}` needs at least one run directory")
    if name == "samples":
        _figure_samples(runs, out, _device(device))
    elif runs:
        from dvaepp.reporting.figures import save_of_runs

        save_of_runs(name, [_read_run(folder, device) for folder in runs], out)
    else:
        from dvaepp.reporting.figures import save

        save(name, out, _device(device))
    print(f"wrote {out}")


def _figure_samples(folders: tuple[Path, ...], out: Path, device: str) -> None:
    import torch

    from dvaepp import runs
    from dvaepp.reporting.figures import write
    from dvaepp.reporting.figures.samples import draw

    panels = {}
    for folder in folders:
        trained = runs.load(folder, device=device)
        per_code = trained.model.images_per_code
        images = trained.sample(100 // per_code, torch.Generator(device).manual_seed(0), per_code)
        panels[f"{trained.record['dataset']}, {trained.recipe.name}, step {trained.record['step']}"] = trained.shown(
            images
        ).cpu()
    write(draw(panels), out)


def report(
    run: tyro.conf.Positional[RunDir],
    out: Annotated[Path | None, tyro.conf.arg(metavar="FILE.html", help="Default: report.html in the run.")] = None,
    data_dir: DataDir = None,
    device: Device = "cpu",
    debug: Debug = False,
) -> None:
    """One HTML page about a run that needs nothing else: curves, samples, the prior, the evaluation, the recipe."""
    from dvaepp import api

    print(f"wrote {api.report(run, out, device=_device(device), data_dir=data_dir)}")


def _read_run(folder: Path, device: str) -> "Run":
    from dvaepp import runs
    from dvaepp.reporting.run import read

    device = _device(device)
    return read(folder, runs.read_recipe(folder), lambda say: runs.load(folder, device=device, say=say))


def export(
    run: tyro.conf.Positional[RunDir],
    out: Annotated[Path, tyro.conf.arg(metavar="DIR", help="The folder to make.")],
    debug: Debug = False,
) -> None:
    """Copy the best model of a run into a small folder to share: no optimizer, no chains. It loads like a run."""
    from dvaepp import runs

    folder = runs.export(run, out)
    size = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
    print(f"wrote {folder}, {size / 1e6:.1f} MB")


def reproduce(
    table: tyro.conf.Positional[Annotated[str, tyro.conf.arg(metavar="TABLE")]],
    cells: Annotated[
        tuple[str, ...], tyro.conf.arg(metavar="PATTERN", help="Only cells whose name contains one; * and ? are wild.")
    ] = (),
    seeds: Annotated[tuple[int, ...], tyro.conf.arg(metavar="N", help="Seeds to run each cell with.")] = (0,),
    scale: Annotated[float, tyro.conf.arg(metavar="F", help="Shorten every schedule to this share.")] = 1.0,
    select: Annotated[
        bool, tyro.conf.arg(help="Try the paper's cross-validation grid and evaluate what validates best.")
    ] = False,
    samples: Annotated[int | None, tyro.conf.arg(metavar="K", help="Importance samples; default: the paper's.")] = None,
    size: Annotated[
        Literal["paper", "small"], tyro.conf.arg(help="Small nets for Tables 3 and 5-8 on a laptop.")
    ] = "paper",
    executor: Annotated[
        str,
        tyro.conf.arg(
            metavar="WHERE",
            help="local processes; dask-local, a dask cluster here, closed to other users by TLS; "
            "dask+tls://HOST:PORT, with the certificates of dask's configuration; or dask://HOST:PORT, through which "
            "anybody who reaches that port can run code.",
        ),
    ] = "local",
    workers: Annotated[
        int | None, tyro.conf.arg(metavar="N", help="Cells at a time, one thread each; default: the cores.")
    ] = None,
    nice: Annotated[bool, tyro.conf.arg(help="Leave the processor to everybody else (lowest priority).")] = False,
    dry_run: Annotated[bool, tyro.conf.arg(help="Tell what would run, with times from a measured step.")] = False,
    show: Annotated[bool, tyro.conf.arg(help="Print the paper's numbers and this library's, and run nothing.")] = False,
    out: Annotated[
        Path | None, tyro.conf.arg(metavar="FILE", help="With --show: write FILE.md, or a plot to FILE.png or .svg.")
    ] = None,
    results: Annotated[Path, tyro.conf.arg(metavar="DIR", help="Where the records of finished cells are.")] = Path(
        "results"
    ),
    root: Annotated[Path, tyro.conf.arg(metavar="DIR", help="Where the runs themselves go.")] = Path("runs/reproduce"),
    data_dir: DataDir = None,
    device: Device = "cpu",
    debug: Debug = False,
) -> None:
    """Train and evaluate the cells of a table of the paper, and print the paper's numbers and this library's.

    Interrupted at any point, also by SIGTERM, the same command goes on where it was; a cell with a record is never run
    again.

    Args:
        table: One of table1, table2, table3, table5, table6, table7, table8.
    """
    from dvaepp.reproduction import plan, records
    from dvaepp.reproduction import show as view
    from dvaepp.reproduction.reproduce import run

    chosen = plan.chosen_cells(table, cells)
    if show:
        found = records.read(results, table, to_stderr)
        if out is None:
            view.terminal(table, found)
        elif out.suffix == ".md":
            out.write_text(view.markdown(table, found))
        else:
            view.plot(table, found, out)
        if out is not None:
            print(f"wrote {out}")
        return
    if samples is not None and samples < 1:
        raise UsageError(f"--samples must be at least 1, got {samples}")
    if workers is not None and workers < 1:
        raise UsageError(f"--workers must be at least 1, got {workers}")
    tasks = plan.tasks(
        chosen,
        seeds=seeds,
        scale=scale,
        size=size,
        select=select,
        root=root.absolute(),
        results=results.absolute(),
        samples=samples,
        data_dir=None if data_dir is None else data_dir.absolute(),
        device=_device(device),
    )
    workers = workers or _cores()
    if dry_run:
        _dry_run(tasks, workers)
        return
    run(tasks, where=executor, workers=workers, root=root, say=to_stderr, nice=nice)
    view.terminal(table, records.read(results, table, to_stderr))


def _dry_run(tasks: "Sequence[Task]", workers: int) -> None:
    from dvaepp.reproduction.estimate import seconds_per_step
    from dvaepp.reproduction.reproduce import pending, progress_of
    from dvaepp.reproduction.supplies import without_data

    left = pending(tasks)
    absent = without_data(left, lambda line: print(f"dvaepp: {line}", file=sys.stderr, flush=True))
    hours = 0.0
    measured: dict[str, float] = {}
    for task in tasks:
        if task not in left:
            print(f"{task.name}: done, {task.record_file.name}")
            continue
        if task.name in absent:
            print(f"{task.name}: {task.recipe.training.steps} steps, time unknown: {absent[task.name]}")
            continue
        # seeds and candidates take the same time, unless a candidate has another model
        key = f"{task.cell} {task.recipe.model.model_dump_json()}"
        if key not in measured:
            measured[key] = seconds_per_step(task)
        begun = progress_of(task)
        own = measured[key] * (begun.steps - begun.step) / 3600
        hours += own
        at = f", from step {begun.step}" if begun.step else ""
        print(f"{task.name}: {begun.steps} steps{at}, {1e3 * measured[key]:.1f} ms each, {own:.2f} h")
    unknown = f", and {len(absent)} of unknown time" if absent else ""
    print(
        f"{len(tasks) - len(left)} done, {len(left)} to run: {hours:.1f} h of training on one thread each, "
        f"about {hours / workers:.1f} h with {workers} at a time{unknown}; validation and evaluation come on top"
    )


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def doctor(data_dir: DataDir = None, debug: Debug = False) -> None:
    """What this machine offers: compiler, kernels, threads, memory, devices, data sets. Lines with ! slow you down."""
    from dvaepp.doctor import findings

    for finding in findings(data_dir):
        print(f"{' ' if finding.good else '!'} {finding.what:24} {finding.found}", flush=True)


COMMANDS: dict[str, Callable[..., Any]] = {
    "train": train,
    "evaluate": evaluate,
    "compare": compare,
    "encode": encode,
    "index": index,
    "search": search,
    "compress": compress,
    "decompress": decompress,
    "sample": sample,
    "reconstruct": reconstruct,
    "inpaint": inpaint,
    "recipes": recipes,
    "show": show,
    "data": data,
    "figure": figure,
    "export": export,
    "reproduce": reproduce,
    "report": report,
    "doctor": doctor,
}


def main(argv: list[str] | None = None) -> None:
    """Parse, run, and turn a failure into one line: 2 for bad usage, 1 for a failure, 130 after SIGINT."""
    if argv is None:  # the command itself, not a program that calls it
        spinning.bound()
    arguments = sys.argv[1:] if argv is None else argv
    debug = "--debug" in arguments
    try:
        try:
            _run(arguments)
        finally:  # also after --help, which ends by SystemExit
            sys.stdout.flush()  # here, where it is met quietly that nobody reads any more
    except BrokenPipeError as error:
        if debug:
            raise
        _quiet_end(error)
    except (Exception, KeyboardInterrupt) as error:
        if debug:
            raise
        _fail(error)


def _run(arguments: list[str]) -> None:
    if arguments == ["--version"]:
        print(f"dvaepp {__version__}")
        return
    tyro.extras.subcommand_cli_from_dict(
        COMMANDS,
        prog="dvaepp",
        description="Generative models with binary latent variables (DVAE++, ICML 2018).",
        args=arguments or ["--help"],
        config=(tyro.conf.FlagCreatePairsOff,),
    )


def _quiet_end(error: BrokenPipeError) -> NoReturn:
    """End without a word when nobody reads our output any more (`dvaepp recipes | head`), as other commands do."""
    if not _unread():
        _fail(error)  # another pipe was broken
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # what is left has nowhere else to go
    sys.exit(141)  # 128 + SIGPIPE


def _unread() -> bool:
    """Whether the reading end of standard output is closed."""
    import select

    try:
        poll = select.poll()
        poll.register(sys.stdout.fileno(), 0)
        return any(event & select.POLLERR for _, event in poll.poll(0))
    except (AttributeError, OSError, ValueError):  # no poll on this system, or standard output is no file
        return False


def _fail(error: BaseException) -> NoReturn:
    if isinstance(error, KeyboardInterrupt):
        to_stderr("dvaepp: interrupted")
        sys.exit(130)
    # our own messages about files are sentences already: the number of the error in front of them helps nobody
    told = error.strerror if isinstance(error, OSError) and error.strerror and error.filename is None else str(error)
    message = " ".join(told.split()) or type(error).__name__
    expected = isinstance(error, (ValueError, OSError))
    hint = "" if expected else f" ({type(error).__name__}; --debug shows the traceback)"
    to_stderr(f"dvaepp: {message}{hint}")
    sys.exit(2 if isinstance(error, UsageError) else 1)


def _device(name: str) -> str:
    import torch

    try:
        torch.empty(0, dtype=torch.float32, device=name)
    except (RuntimeError, AssertionError) as error:
        reason = str(error).splitlines()[0]
        raise UsageError(f"device {name!r} cannot be used here: {reason}; try --device cpu") from None
    return name
