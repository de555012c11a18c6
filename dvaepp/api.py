"""Train and report, for recipes and for models of one's own alike; `runs` loads and evaluates."""

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, SupportsFloat

import torch

from dvaepp import distributed, pretrained, recipes, runs
from dvaepp.data import Dataset, Source, as_dataset, names, subset
from dvaepp.devices import Device, usable
from dvaepp.errors import UsageError
from dvaepp.models.base import Model
from dvaepp.models.trained import Trained
from dvaepp.recipes.schema import DataConfig, OptimizerConfig, OwnConfig, Recipe, SmoothingConfig, TrainingConfig
from dvaepp.reporting import page
from dvaepp.reporting.images import reconstructed, sampled, save_grid
from dvaepp.reporting.run import read
from dvaepp.training import loop
from dvaepp.types import Count

if TYPE_CHECKING:
    Trainable = Model | Recipe | str
else:
    Trainable = Any  # other things are refused with a remedy
Beta = SupportsFloat | Sequence[SupportsFloat]
STEPS = 10_000
SHOWN = 40  # pictures of a run: images beside their reconstructions


@torch.inference_mode(False)
@torch.enable_grad()
def train(
    model: Trainable,
    run_dir: Path | str,
    *,
    data: Source | None = None,
    steps: Count | None = None,
    beta: Beta | None = None,
    batch_size: Count | None = None,
    learning_rate: float | None = None,
    seed: Count | None = None,
    patience: Count | None = None,
    set: Mapping[str, Any] | None = None,
    callbacks: Sequence[loop.Callback] = (),
    resume: bool = False,
    pictures: bool = True,
    data_dir: Path | str | None = None,
    device: Device = "cpu",
    say: Callable[[str], None] | None = None,
) -> Path:
    """Train a recipe, by name or as an object, or a model of one's own, and return the run's folder.

    `data` is a tensor, an array, a torch Dataset, a `dvaepp.data.Dataset`, the name of a data set, or the path of a
    folder or file; a recipe brings its own where none is given. `beta` is the sharpness of the smoothing, or a pair
    (start, end); `set` changes any other field, as `--set` of the command line does:
    set={"chains.num_chains": 50, "training.kl_warmup": 0.1}. `patience` ends the run after so many validations
    without a better one. Each of `callbacks` is called with the record of each validation (`dvaepp.training.callbacks`
    has some). A run that was killed goes on with `resume=True` and the same arguments, bit for bit on a CPU. A model of
    one's own is in evaluation mode afterwards and has the weights of the best validation, which `load` gives, too.

    Choose it for every training: recipes of the paper, and models of your own such as `BinaryVAE`.

    >>> images = torch.eye(16).repeat(10, 1)
    >>> model = dvaepp.BinaryVAE([torch.nn.Linear(16, 8)], torch.nn.Linear(8, 16), dvaepp.priors.RBM(4, 4))
    >>> run = dvaepp.train(model, run_dir="runs/own", data=images, steps=4)
    >>> run = dvaepp.train("table2.rbm", run_dir="runs/rbm", data=images, steps=4)
    """
    device = usable(device)
    given = {
        "training.steps": steps,
        "training.batch_size": batch_size,
        "optimizer.learning_rate": learning_rate,
        "training.seed": seed,
        "training.patience": patience,
    }
    changes = {path: value for path, value in given.items() if value is not None} | dict(set or {})
    if beta is not None:
        changes["smoothing.beta"] = _start_end(beta) if isinstance(beta, tuple | list) else beta
    own = model if isinstance(model, Model) else None
    dataset, recipe = _for_recipe(model, data, changes) if own is None else _for_own(own, data, changes)
    folder = loop.train(
        recipe,
        run_dir,
        data_dir=data_dir,
        resume=resume,
        device=device,
        say=say,
        model=own,
        dataset=dataset,
        callbacks=callbacks,
    )
    if distributed.rank() == 0 and (pictures or own is not None):
        trained = runs.load(folder, device=device, model=own)
        if pictures:
            dataset = recipe.data.load(data_dir) if dataset is None else dataset
            write_pictures(trained, dataset, folder / "samples")
    return folder


def _start_end(beta: Sequence[Any]) -> dict[str, Any]:
    if len(beta) != 2:
        raise UsageError(
            f"beta is {beta}; expected a number or a pair (start, end); one for each group is "
            f"set={{'smoothing.beta': {list(beta)}}}"
        )
    return {"start": beta[0], "end": beta[1]}


def _overridden(recipe: Recipe, changes: Mapping[str, Any]) -> Recipe:
    return recipes.override(recipe, [f"{path}={_json(path, value)}" for path, value in changes.items()])


def _json(path: str, value: Any) -> str:
    """A value as `--set` takes it; numbers of NumPy and torch are numbers, and a path is its name."""

    def plain(other: Any) -> Any:
        if isinstance(other, Path):
            return str(other)
        if hasattr(other, "tolist"):
            return other.tolist()
        raise UsageError(f"{path} is a {type(other).__name__}; expected a number, a word, or a list or mapping of them")

    return json.dumps(value, default=plain)


def _for_recipe(recipe: Any, data: Source | None, changes: dict[str, Any]) -> tuple[Dataset | None, Recipe]:
    if isinstance(recipe, str):
        recipe = recipes.build(recipe)
    if not isinstance(recipe, Recipe):
        raise UsageError(f"model is a {type(recipe).__name__}; expected a recipe or its name, or a model (BinaryVAE)")
    if data is None:
        return None, _overridden(recipe, changes)
    dataset = as_dataset(data, likelihood=recipe.model.expected_likelihood)
    return dataset, _overridden(recipe.changed(data=_described(data, dataset)), changes)


def _for_own(model: Model, data: Source | None, changes: dict[str, Any]) -> tuple[Dataset | None, Recipe]:
    """The data of a model of one's own, and a recipe that describes both; shapes are checked here."""
    if data is None:
        raise UsageError(
            "a model of one's own needs data: give data=, a tensor, an array, a folder or a data set's name"
        )
    dataset = as_dataset(data, likelihood=model.reads)
    model.prepare(dataset.sample_shape, dataset.image_shape)
    recipe = Recipe(
        name="own",
        data=_described(data, dataset),
        model=OwnConfig.of(model),
        smoothing=SmoothingConfig.of("exponential"),
        optimizer=OptimizerConfig(learning_rate=1e-3, epsilon=1e-8),
        training=TrainingConfig(
            steps=STEPS,
            objective="marginal" if model.boltzmann is None else "boltzmann",
            precision="float64" if model.dtype == torch.float64 else "float32",
        ),
    )
    return dataset, _overridden(recipe, changes)


def _described(data: Source, dataset: Dataset) -> DataConfig:
    """What a run's recipe says of its data: the name of a data set, a path, or only that it was given in Python."""
    if isinstance(data, str) and data in names():
        return DataConfig(name=data)
    if isinstance(data, str | Path):
        return DataConfig(name=dataset.name, path=str(data), likelihood=dataset.likelihood)
    return DataConfig(name=dataset.name, memory=True, likelihood=dataset.likelihood)


def report(
    run: Path | str,
    out: Path | str | None = None,
    *,
    model: Model | None = None,
    data: Source | None = None,
    device: Device = "cpu",
    data_dir: Path | None = None,
) -> Path:
    """Write the HTML page of a run, by default report.html in it, and return its path.

    For a shipped model the default is NAME.html in the current folder.

    Choose it to look at a run, finished or not, or to show it to somebody: the page needs no other file.

    >>> dvaepp.report("runs/own", model=model, data=images).name
    'report.html'
    """
    folder = pretrained.folder(run)
    recipe = runs.read_recipe(folder)
    if model is None:
        recipe.model.check_buildable()
    about = read(folder, recipe, lambda say: runs.load(folder, device=device, say=say, model=model))
    if out is None:
        out = Path(f"{folder.name}.html") if pretrained.is_shipped(folder) else folder / "report.html"
    out = Path(out)
    dataset = None if data is None else as_dataset(data, likelihood=recipe.model.expected_likelihood)
    page.write(about, out, data_dir, dataset)
    return out


def write_pictures(trained: Trained, dataset: Dataset, folder: Path) -> list[Path]:
    """Write samples.png, of the prior, and reconstructions.png, five pairs to a row, of the test images."""
    x = dataset.images("test", subset(len(dataset.test), SHOWN))
    pictures = {"samples.png": sampled(trained), "reconstructions.png": reconstructed(trained, x)}
    for name, images in pictures.items():
        save_grid(images, 10, folder / name)
    return [folder / name for name in pictures]
