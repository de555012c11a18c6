"""Train and evaluate: `recipes`, `show`, `train`, `evaluate`, `compare`."""

import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

import tyro

from dvaepp.cli.arguments import (
    Arguments,
    DataDir,
    Debug,
    Device,
    Json,
    Limit,
    Overrides,
    RunDir,
    Split,
    argument,
    at_least,
    usable_device,
)
from dvaepp.errors import UsageError, to_stderr


def recipes(debug: Debug = False) -> None:
    """List the recipes: what can be trained, and with which arguments.

    A line with a name says what the recipe is, the line below it its arguments and their defaults.

    Examples:
        dvaepp recipes
    """
    from inspect import getdoc, signature

    from dvaepp.recipes import functions

    known = functions()
    width = max(map(len, known))
    for name, function in sorted(known.items()):
        arguments = " ".join(f"{p.name}={p.default}" for p in signature(function).parameters.values())
        print(f"{name:{width}} {(getdoc(function) or '').splitlines()[0]}\n{'':{width}} {arguments}")


def show(
    recipe: tyro.conf.Positional[Annotated[str, argument("One of `dvaepp recipes`.", "RECIPE")]],
    arguments: tyro.conf.Positional[Arguments] = (),
    set_: Overrides = [],  # noqa: B006
    debug: Debug = False,
) -> None:
    """Print one recipe resolved in full.

    Every field of it goes to stdout as JSON. On stderr stand the model's modules, the maps that they end at, their
    parameters, and the memory that training takes.

    Examples:
        dvaepp show demo
        dvaepp show table3.rbm dataset=omniglot size=small
        dvaepp show table2.rbm layers=2 linear=false --set training.steps=60000
    """
    from dvaepp.recipes import budget, build

    chosen = build(recipe, arguments, set_)
    print(chosen.model_dump_json(indent=1))
    if chosen.data.path is None:  # the size of a user's own images is not known here
        from dvaepp.training.state import example_model

        rows = [(r.module, r.blocks, r.output, f"{r.parameters:,}") for r in example_model(chosen).summary()]
        _print_columns([("module", "blocks", "output", "parameters"), *rows])
        print(f"memory: at most about {budget.cost(chosen).total(chosen) / 2**30:.1f} GiB", file=sys.stderr)


def _print_columns(rows: Sequence[Sequence[str]]) -> None:
    """On stderr, each column as wide as its contents, the last to the right; one with a heading alone is left out."""
    columns = [column for column in zip(*rows, strict=True) if any(column[1:])]
    widths = [max(map(len, column)) for column in columns]
    for row in zip(*columns, strict=True):
        *texts, last = (text.ljust(width) for text, width in zip(row, widths, strict=True))
        print("  ".join([*texts, last.strip().rjust(widths[-1])]), file=sys.stderr)


def train(
    recipe: tyro.conf.Positional[
        Annotated[str | None, argument("One of `dvaepp recipes`. Without it: demo.", "[RECIPE]")]
    ] = None,
    arguments: tyro.conf.Positional[Arguments] = (),
    set_: Overrides = [],  # noqa: B006 tyro reads it as "none given"
    run_dir: Annotated[
        Path | None,
        argument("Where the run is written. Without it: a folder in runs/ named by recipe and time.", "DIR"),
    ] = None,
    data_dir: DataDir = None,
    resume: Annotated[
        bool,
        argument("Continue the run in --run-dir by its own recipe; one that is given must be the same."),
    ] = False,
    device: Device = "cpu",
    debug: Debug = False,
) -> None:
    """Train a model.

    The run directory, whose name is printed at the end, gets the recipe, the metrics, checkpoints and pictures. SIGINT
    and SIGTERM save a checkpoint and end the run; --resume goes on from there.

    Examples:
        dvaepp train demo --run-dir runs/demo
        dvaepp train table2.rbm layers=2 linear=false --set training.steps=60000
        dvaepp train --resume --run-dir runs/demo
    """
    from dvaepp import api, distributed, recipes, runs, training

    device = usable_device(device)
    if resume:
        if run_dir is None:
            raise UsageError("--resume needs --run-dir, the run to continue")
        chosen = recipes.override(runs.read_recipe(run_dir.absolute()), set_)
    if recipe is not None or not resume:
        chosen = recipes.build(recipe or "demo", arguments, set_)
    run_dir = run_dir or Path("runs") / f"{chosen.name}-{time.strftime('%Y%m%d-%H%M%S')}"
    with distributed.joined(device) as device:
        run_dir = Path(distributed.from_first(str(run_dir)))  # its name may hold the time
        chosen.model.check_buildable()
        training.train(chosen, run_dir, data_dir=data_dir, resume=resume, device=device)
        first = distributed.rank() == 0
    if first:
        trained = runs.load(run_dir, device=device)
        for path in api.write_pictures(trained, chosen.data.load(data_dir), run_dir / "samples"):
            print(f"wrote {path}")
        print(run_dir)


def evaluate(
    run: tyro.conf.Positional[RunDir],
    split: Split = "test",
    samples: Annotated[int | None, argument("Importance samples. Without it: the recipe's number.", "K")] = None,
    limit: Limit = None,
    beta: Annotated[
        Literal["inf", "training"] | None,
        argument(
            "The binary limit, or the smoothed model of App. I. Without it: the recipe's, inf but for App. I.",
            "{inf,training}",
        ),
    ] = None,
    data_dir: DataDir = None,
    json: Json = False,
    device: Device = "cpu",
    debug: Debug = False,
) -> None:
    """Estimate log p(x) of a run's model, with log Z and error bars.

    The estimate is importance-weighted, in nats, by default in the binary limit. evaluation.json keeps the best one of
    the run's model (on the test set, then of more images, then with more samples); evaluations.jsonl has all of them.

    Examples:
        dvaepp evaluate runs/demo --samples 100 --limit 100
        dvaepp evaluate runs/demo --split validation --json
    """
    from dvaepp import distributed, runs

    at_least(1, "--samples", samples)
    at_least(1, "--limit", limit)
    with distributed.joined(usable_device(device)) as device:
        runs.evaluate(
            run,
            split=split,
            samples=samples,
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
        bar = _error_bar(partition["standard_error"])
        print(f"log Z = {partition['value']:.3f}{bar} ({partition['method']})", flush=True)
        for warning in partition["diagnostics"].get("warnings", []):
            to_stderr(f"warning: {warning}")


def _error_bar(error: float) -> str:
    """No bar on an exact sum; a bar below the last digit shown is written out, since "± 0.000" would claim a sum."""
    if error == 0:
        return ""
    return f" ± {error:.3f}" if error >= 5e-4 else f" ± {error:.0e}"


def compare(
    run: tyro.conf.Positional[RunDir],
    other: tyro.conf.Positional[
        Annotated[Path | None, argument("The run to compare with. Without it: RUN itself.", "[OTHER]")]
    ] = None,
    json: Json = False,
    debug: Debug = False,
) -> None:
    """Compare two evaluated runs image by image.

    Log-likelihoods of RUN minus those of OTHER, with the standard error of the mean difference. Both have to be
    evaluated on the same images. Averaged weights of RUN are compared too, where it has them.

    Examples:
        dvaepp compare runs/demo runs/other
    """
    from json import dumps

    from dvaepp.evaluation import paired
    from dvaepp.evaluation.record import strict
    from dvaepp.pretrained import own_folder

    mine, theirs = paired.read(own_folder(run)), paired.read(own_folder(other or run))
    weights = [name for name in mine.log_likelihood if other is not None or name != "trained"]
    if not weights:
        raise UsageError(f"{run} has no averaged weights to compare with its own: name another run")
    found = {name: paired.difference(mine, theirs, name) for name in weights}
    if json:
        print(dumps(strict({name: each._asdict() for name, each in found.items()}), indent=1))
        return
    for name, each in found.items():
        print(
            f"{name} weights of {run} - {other or run}: {each.value:+.3f} ± {each.standard_error:.3f} nats "
            f"({each.num_images} images; ± {each.image_error:.3f} over images, the rest is log Z)"
        )
