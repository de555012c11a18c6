"""Run directories: load a trained model, evaluate it, export it. The name of a shipped model serves as well."""

import copy
import math
from collections.abc import Callable, Sequence
from operator import index
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from dvaepp import distributed, pretrained
from dvaepp.data import Dataset, Source, as_dataset, subset
from dvaepp.devices import Device, usable
from dvaepp.errors import UsageError, to_stderr
from dvaepp.evaluation import log_likelihood, paired
from dvaepp.evaluation import record as evaluations
from dvaepp.evaluation.pieces import in_pieces
from dvaepp.files import appearing, write_durably
from dvaepp.log_partition import LogPartition, log_partition
from dvaepp.log_partition.starts import with_starts
from dvaepp.models.base import Model
from dvaepp.models.build import build_model
from dvaepp.models.trained import Trained as Trained
from dvaepp.progress import progress
from dvaepp.recipes import budget
from dvaepp.recipes.schema import Recipe
from dvaepp.smoothing.base import Smoothing
from dvaepp.training import checkpoint
from dvaepp.training.same_data import check_same_data
from dvaepp.training.schedules import smoothing_at
from dvaepp.types import Count

CHECKED_IMAGES = 256  # images whose bits are the starts of chains that test log Z


def read_recipe(run_dir: Path | str) -> Recipe:
    path = pretrained.folder(run_dir) / "recipe.json"
    if not path.is_file():
        raise UsageError(f"{run_dir} is not a run directory: it has no recipe.json")
    try:
        return Recipe.model_validate_json(path.read_text())
    except ValueError as error:
        raise UsageError(f"{path} cannot be read: {' '.join(str(error).split())[:200]}") from None


def load(
    run: Path | str,
    *,
    model: Model | None = None,
    which: str = "best",
    average: bool = False,
    device: Device = "cpu",
    say: Callable[[str], None] | None = None,
) -> Trained:
    """The trained model of a run or of a shipped model's name; a run of one's own architecture needs `model`.

    Choose it to use what was trained: codes, samples, reconstructions, likelihoods. It is the checkpoint that was best
    by validation, or the `last` one; where that is damaged it is another one, and `say` is told so, by default on
    stderr. A run of a model of one's own stores no program: give a `model` of the same architecture, as it was made
    for training, and it gets the weights. `average` takes the averaged weights of a run that was trained with
    `training.average`. `dvaepp models` lists the names; a folder of the same name wins over one.

    >>> dvaepp.load("mnist-rbm").sample(2).shape
    torch.Size([2, 1, 28, 28])
    >>> dvaepp.load("runs/rbm").sample(16).shape
    torch.Size([16, 1, 4, 4])
    >>> dvaepp.load("runs/own", model=model).encode(images).shape
    torch.Size([160, 8])
    """
    if which not in ("best", "last"):
        raise UsageError(f"which must be 'best' or 'last', got {which!r}")
    recipe = read_recipe(run)
    if model is None:
        recipe.model.check_buildable()
    device = usable(device)
    saved = checkpoint.read(pretrained.folder(run) / "checkpoints", which, device, say or to_stderr)
    weights = checkpoint.under("average" if average else "model", saved.tensors)
    if average and not weights:
        raise UsageError(f"{run} has no averaged weights: train with --set training.average=0.05")
    if model is not None:
        shape = saved.record["image_shape"]
        model.prepare(saved.record.get("sample_shape", shape), shape)
        model.check_weights(weights)
        return Trained(_filled(model, weights).to(device), recipe, _record(saved))
    try:
        built = _filled(_built(recipe, saved.record["image_shape"], weights), weights)
    except (KeyError, TypeError, ValueError, RuntimeError, StopIteration) as error:
        reason = " ".join(str(error).split())[:200]
        raise OSError(f"the checkpoint in {run} does not hold the model of its recipe.json: {reason}") from None
    return Trained(built.to(device), recipe, _record(saved))


def _record(saved: checkpoint.Checkpoint) -> dict[str, Any]:
    """What a checkpoint says of itself, with the digest that evaluations refer to."""
    averaged = any(name.startswith("average.") for name in saved.tensors)
    return {**saved.record, evaluations.DIGEST: saved.digest, "averaged": averaged}


def _built(recipe: Recipe, image_shape: Any, weights: dict[str, Tensor]) -> Model:
    """The model of a recipe, untrained; the shape is what a checkpoint states."""
    shape = _image_shape(recipe, image_shape, weights)
    budget.check(recipe, shape)
    blank = torch.zeros(shape, dtype=torch.float32, device="cpu")
    return build_model(recipe.model, weights["train_mean"].cpu().reshape(shape) if "train_mean" in weights else blank)


def _filled(model: Model, weights: dict[str, Tensor]) -> Model:
    """A model with the weights of a checkpoint, in their type."""
    model = model.to(next(value.dtype for value in weights.values() if value.is_floating_point()))
    model.load_state_dict(weights)
    return model


def _image_shape(recipe: Recipe, stated: Any, weights: dict[str, Tensor]) -> tuple[int, int, int]:
    """The shape that a checkpoint states, if its weights or its recipe bear it out.

    It is checked before anything is made of it: a file of a few kilobytes may state any size.
    """
    whole = isinstance(stated, list) and len(stated) == 3 and all(type(n) is int and n > 0 for n in stated)
    if not whole:
        raise ValueError(f"image_shape {str(stated)[:60]} is not made of three whole positive numbers")
    channels, height, width = stated
    pixels = weights["train_mean"].numel() if "train_mean" in weights else None
    if misfit := recipe.model.misfit((channels, height, width), pixels):
        raise ValueError(f"image_shape {stated} cannot be: {misfit}")
    return channels, height, width


def export(
    run_dir: Path | str, out: Path | str, *, keep_path: bool = True, say: Callable[[str], None] | None = None
) -> Path:
    """Copy a run's best model into a new folder without what only training needs; `load` takes it like a run.

    Its evaluation goes along if it is of this very model. `keep_path=False` leaves out where images of one's own lie:
    their path tells strangers about the machine, and is of no use to them.
    """
    out = Path(out)
    if out.exists():
        raise UsageError(f"{out} is there already: choose another folder")
    run_dir = pretrained.folder(run_dir)
    recipe = read_recipe(run_dir) if keep_path else read_recipe(run_dir).without_path()
    saved = checkpoint.read(run_dir / "checkpoints", "best")
    weights = {name: value for name, value in saved.tensors.items() if name.startswith("model.")}
    kept = ("step", "dataset", "data_checksum", "image_shape", "sample_shape", "version")
    record = {name: saved.record[name] for name in kept if name in saved.record}
    found = evaluations.read(run_dir)
    own = found is not None and evaluations.belongs(found, _evaluated(recipe, _record(saved)))
    with appearing(out) as partial:
        digest = checkpoint.write(partial / "checkpoints", weights, record, recipe.model_dump(mode="json"), best=True)
        write_durably(partial / "recipe.json", (recipe.model_dump_json(indent=1) + "\n").encode())
        if found is not None and own:
            # the same weights, in a file without the rest of the checkpoint: only their digest is another
            evaluations.write(partial, {**found, evaluations.DIGEST: digest})
    if found is not None and not own:
        (say or to_stderr)(
            f"{evaluations.FILE} is of another checkpoint ({evaluations.in_words(found)}) and was left out; "
            f"dvaepp evaluate {out} makes one"
        )
    return out


def evaluation_of(run_dir: Path | str) -> dict[str, Any]:
    """The evaluation of the model that a run has now, as `evaluate` wrote it; refuses that of another."""
    folder, recipe = pretrained.folder(run_dir), read_recipe(run_dir)
    found = evaluations.read(folder)
    saved = checkpoint.read(folder / "checkpoints", "best")
    if found is not None and evaluations.belongs(found, _evaluated(recipe, _record(saved))):
        return found
    other = "" if found is None else f" of this checkpoint, but one of another ({evaluations.in_words(found)})"
    raise OSError(f"{run_dir} has no evaluation{other}; dvaepp evaluate {run_dir} makes one")


def _evaluated(recipe: Recipe, record: dict[str, Any]) -> evaluations.Evaluated:
    return evaluations.Evaluated(record[evaluations.DIGEST], record, recipe.training.seed, recipe.evaluation.beta)


def dataset_of(recipe: Recipe, data_dir: Path | str | None = None) -> Dataset:
    return recipe.data.load(data_dir)


def evaluate(
    run: Path | str,
    *,
    samples: Count | None = None,
    limit: Count | None = None,
    model: Model | None = None,
    data: Source | None = None,
    split: str = "test",
    beta: str | None = None,
    device: Device = "cpu",
    data_dir: Path | str | None = None,
    seed: int = 0,
    show_progress: bool | None = None,
    show: Callable[[dict[str, Any]], None] = lambda result: None,
    say: Callable[[str], None] | None = None,
    **log_z_options: Any,
) -> dict[str, Any]:
    """Importance-weighted log p(x) of a run with its error bar, that of log Z folded in, as in evaluation.json.

    `samples` is the number K of importance samples, and `beta` "inf" or "training": both are the recipe's unless given.
    `limit` takes so many images of the split. `model` is needed for a run of one's own architecture, `data` for data
    that was given in Python. `log_z_options` go to `log_partition`.

    The result is handed to `show` as soon as it is there, before anything is written. Then it is added to
    `evaluations.jsonl`, and becomes `evaluation.json` unless that holds a better one of the same model (see
    `evaluation.record`); `say` is told which. With it goes `evaluation.npz`, the log-likelihoods image by image (see
    `evaluation.paired`). Averaged weights, where the run has them, are evaluated too, with a log Z of their own, and
    stand under `average`. Nothing is written to a shipped model. Raises NonFiniteResult and writes nothing where there
    is no finite result, and NotWritten where it cannot be written.

    Choose it for the numbers of a finished run: the binary limit, with log Z and its error in the error bar.

    >>> result = dvaepp.evaluate("runs/own", model=model, data=images, samples=10)
    >>> result["log_likelihood"] < 0 < result["standard_error"]
    True
    """
    say = say or to_stderr
    if beta not in (None, "inf", "training"):
        raise UsageError(f"beta must be 'inf' or 'training', got {beta!r}")
    trained = load(run, device=device, say=say, model=model)
    if log_z_options and trained.model.boltzmann is None:
        raise UsageError(f"evaluate has no option {next(iter(log_z_options))!r} for a model without a Boltzmann prior")
    recipe = trained.recipe
    num_samples = recipe.evaluation.samples if samples is None else index(samples)
    limit = None if limit is None else index(limit)
    if num_samples < 1 or (limit is not None and limit < 1):
        raise UsageError(f"samples and limit must be at least 1, got {num_samples} and {limit}")
    likelihood = recipe.model.expected_likelihood
    dataset = dataset_of(recipe, data_dir) if data is None else as_dataset(data, likelihood=likelihood)
    check_same_data(run, trained.record, dataset, recipe.data)
    chosen = subset(len(dataset.split(split)), limit)
    x = dataset.images(split, chosen)
    beta = recipe.evaluation.beta if beta is None else beta
    smoothing = None if beta == "inf" else smoothing_at(recipe.smoothing, 1.0)
    first = distributed.rank() == 0
    options = {"seed": seed, "show_progress": show_progress if first else False, **log_z_options}
    measured, estimates = _measured(run, trained, x, num_samples, smoothing, **options)
    result = measured | {
        "num_samples": num_samples,
        "num_images": len(x),
        "split": split,
        "beta": "inf" if smoothing is None else recipe.smoothing.sharpness(1.0),
        "dataset": dataset.name,
        "data_checksum": dataset.checksum,
        "recipe": recipe.name,
        "steps": trained.record["step"],
        "seed": recipe.training.seed,
        evaluations.DIGEST: trained.record[evaluations.DIGEST],
    }
    each = {"trained": estimates}
    if trained.record["averaged"]:
        other = None if model is None else copy.deepcopy(model)
        averaged = load(run, average=True, device=device, say=say, model=other)
        result["average"], each["averaged"] = _measured(run, averaged, x, num_samples, smoothing, **options)
    if first:
        try:
            show(result)
        finally:  # the result may have taken hours, so it is kept even where it could not be shown
            _keep(pretrained.folder(run), result, _evaluated(recipe, trained.record), chosen, each, say)
    return result


def _measured(
    run_dir: Path | str,
    trained: Trained,
    x: Tensor,
    num_samples: int,
    smoothing: Smoothing | Sequence[Smoothing] | None,
    *,
    seed: int,
    show_progress: bool | None,
    **log_z_options: Any,
) -> tuple[dict[str, Any], Tensor]:
    """The log-likelihood of one set of weights with its own log Z, as numbers and image by image."""
    model, device = trained.model, str(trained.device)
    _check_weights(run_dir, model)
    log_z: LogPartition | None = None
    if model.boltzmann is not None:
        generator = torch.Generator(device).manual_seed(seed)
        log_z = log_partition(model.boltzmann, "auto", generator, show_progress=show_progress, **log_z_options)
        if log_z.method != "exact":  # bits of images are states that the prior should know
            bits = trained.encode(x[:: math.ceil(len(x) / CHECKED_IMAGES)])
            log_z = with_starts(model.boltzmann, log_z, bits, generator, show_progress)
    value = distributed.from_first(log_z.value if log_z else 0.0)

    def estimate(images: Tensor, generator: torch.Generator) -> Tensor:
        images = images.to(model.dtype)
        found = log_likelihood(model, images, num_samples, log_z=value, smoothing=smoothing, generator=generator)
        return found[:, None]

    with progress(f"log p(x), K = {num_samples}", len(x), show_progress) as advance:
        estimates = in_pieces(x, estimate, seed=seed, device=device, advance=advance)[:, 0]
    result = _result(estimates, log_z, x[0].numel())
    _check_result(run_dir, estimates, result)
    return evaluations.strict(result), estimates


class NotWritten(OSError):
    """An evaluation was made and could not be written."""

    def __init__(self, error: OSError) -> None:
        super().__init__(error.errno, f"evaluated, but {error.strerror or error}")


class NonFiniteResult(ValueError):
    """A log-likelihood or a log Z is infinite or no number."""


def _keep(
    folder: Path,
    result: dict[str, Any],
    model: evaluations.Evaluated,
    chosen: Tensor,
    estimates: dict[str, Tensor],
    say: Callable[[str], None],
) -> None:
    if pretrained.is_shipped(folder):
        say(
            f"{folder.name} comes with dvaepp and keeps its own evaluation, so that this one is not written; "
            f"dvaepp export {folder.name} --out DIR makes a run of your own"
        )
        return
    try:
        kept, line = evaluations.keep(folder, result, model)
        if kept is result:
            paired.write(folder, result, chosen.cpu(), {name: each.cpu() for name, each in estimates.items()})
    except OSError as error:
        raise NotWritten(error) from None
    if line:
        say(line)


def _check_weights(run_dir: Path | str, model: Model) -> None:
    """Refuse weights that are not finite, before hours are spent on them."""
    broken = [name for name, value in model.state_dict().items() if not bool(torch.isfinite(value).all())]
    if broken:
        raise NonFiniteResult(
            f"{run_dir} has weights that are not finite ({', '.join(broken[:3])}; {len(broken)} tensors), so that its "
            "log-likelihood is no number; train it again with a lower optimizer.learning_rate"
        )


def _check_result(run_dir: Path | str, estimates: Tensor, result: dict[str, Any]) -> None:
    """Refuse a log-likelihood, a log Z or an error bar that is not finite."""
    partition = result["log_partition"] or {"value": 0.0, "standard_error": 0.0}
    if all(map(math.isfinite, (result["log_likelihood"], partition["value"], partition["standard_error"]))):
        return
    broken = int((~torch.isfinite(estimates)).sum())
    log_z = f", log Z = {partition['value']} ± {partition['standard_error']}" if result["log_partition"] else ""
    raise NonFiniteResult(
        f"the log-likelihood of {run_dir} is {result['log_likelihood']}: {broken} of {len(estimates)} images have none "
        f"that is finite{log_z}; nothing was written. More --samples may help, or --set training.precision=float64 and "
        "a lower optimizer.learning_rate in training"
    )


def _result(estimates: Tensor, log_z: LogPartition | None, num_pixels: int) -> dict[str, Any]:
    """Mean over images; its standard error adds that of log Z, which all images share.

    One image says nothing about the spread over images: there the standard error is None, rather than that of log Z
    alone or 0.
    """
    mean = estimates.mean().item()
    shared = log_z.standard_error if log_z else 0.0
    several = len(estimates) > 1
    partition = None
    if log_z:
        names = ("effective_sample_size", "r_hat", "round_trips", "num_sweeps", "starts", "warnings")
        kept = {name: log_z.diagnostics[name] for name in names if name in log_z.diagnostics}
        partition = {
            "value": log_z.value,
            "standard_error": log_z.standard_error,
            "method": log_z.method,
            "diagnostics": kept,
        }
    return {
        "log_likelihood": mean,
        "standard_error": math.hypot(estimates.std().item() / len(estimates) ** 0.5, shared) if several else None,
        "bits_per_dim": -mean / (num_pixels * math.log(2)),
        "log_partition": partition,
    }
