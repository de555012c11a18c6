"""Training with a relaxed prior: it learns, with one sample and with several, and its loss is the bound it claims."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from dvaepp import recipes, runs
from dvaepp.errors import UsageError
from dvaepp.models.noise import BatchNoise
from dvaepp.objectives import importance_weighted
from dvaepp.training import train
from dvaepp.training.schedules import kl_weight, smoothing_at
from dvaepp.training.state import build
from dvaepp.training.step import _loss, update
from tests.training.toy import SMALL_IMAGES, quiet, stripes

NAMES = ["power_law", "gaussian", "exponential", "gaussian_integral"]


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return stripes(tmp_path_factory.mktemp("data"))


def _recipe(images: Path, name: str, samples: int, steps: int = 300, *changes: str) -> recipes.Recipe:
    small = [
        f"data.path={images}",
        "model.groups=[4,4]",
        f"training.steps={steps}",
        "training.validate_every=1",
        "training.validation_samples=10",
        "chains.num_chains=50",
        "chains.num_sweeps=5",
    ]
    return recipes.build(f"relaxed.{name}", ["layers=2", "linear=false", f"samples={samples}"], [*small, *changes])


@pytest.mark.slow
@pytest.mark.parametrize("name, samples", [(name, 1) for name in NAMES] + [("power_law", 5)])
def test_every_relaxed_recipe_learns(name: str, samples: int, images: Path, tmp_path: Path) -> None:
    """The K-sample likelihood in the binary limit passes the factorial one of the mean image by 3 nats."""
    changes = ["training.kl_warmup=0", "optimizer.warmup=0", "model.hidden=[30]"]
    recipe = _recipe(images, name, samples, 300, *changes)
    train(recipe, tmp_path / "run", say=quiet)
    lines = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    last = [line for line in lines if "validation_bound" in line][-1]
    dataset = runs.dataset_of(recipe)
    x, mean = dataset.images("validation").flatten(1), dataset.train_mean.reshape(-1).clamp(0.001, 0.999)
    factorial = (x * mean.log() + (1 - x) * (1 - mean).log()).sum(1).mean().item()
    assert last["validation_log_likelihood"] > factorial + 3
    assert last["validation_kl"] > 0.5


def test_the_kl_weight_stands_inside_the_weights(images: Path) -> None:
    """The loss while γ < 1, against log mean exp(log p(x|ζ) - γ KL) written out with the same noise, in float64."""
    recipe = _recipe(images, "power_law", 3, 100, "training.precision=float64")
    dataset = runs.dataset_of(recipe)
    state = build(recipe, dataset)._replace(step=12)
    x = dataset.images("train")[:7].double()
    gamma = kl_weight(recipe.training.kl_warmup, 0.12)
    assert gamma == pytest.approx(0.4)
    loss, _ = _loss(recipe, state._replace(generator=torch.Generator().manual_seed(1)), x)
    noise = BatchNoise(torch.Generator().manual_seed(1), x.device, dtype=torch.float64)
    smoothing = smoothing_at(recipe.smoothing, 0.12)
    found = state.model.terms(
        x.repeat(3, 1, 1, 1), smoothing, noise, objective="relaxed", log_z=state.log_z, weights=True
    )
    log_w = (found.log_likelihood - gamma * found.kl.sum(0)).reshape(3, 7)
    assert loss.item() == pytest.approx(-importance_weighted(log_w).mean().item(), abs=1e-9)


@pytest.mark.parametrize("samples", [1, 3])
@pytest.mark.parametrize("local", ["normal", "bernoulli"])
def test_convolutional_models_train_with_relaxed_priors(samples: int, local: str, images: Path, tmp_path: Path) -> None:
    """A few steps with a relaxed RBM and either kind of local units; K samples and balancing together."""
    settings = SMALL_IMAGES | {
        "data.path": str(images),
        "training.objective": "relaxed",
        "training.importance_samples": samples,
        "model.local_kind": local,
        "training.steps": 4,
        "training.batch_size": 5,
        "training.validate_every": 1,
        "training.validation_images": 10,
        "training.validation_samples": 3,
        "chains.num_chains": 10,
        "chains.num_sweeps": 2,
    }
    recipe = recipes.build("table3.rbm", ["size=small"], [f"{key}={value}" for key, value in settings.items()])
    train(recipe, tmp_path / "run", say=quiet)
    last = json.loads((tmp_path / "run" / "metrics.jsonl").read_text().splitlines()[-1])
    assert torch.isfinite(torch.tensor(last["validation_bound"]))


def test_any_boltzmann_prior_can_be_relaxed(images: Path, tmp_path: Path) -> None:
    """A machine on a king's graph, sampled in four blocks, with K = 2."""
    changes = ['model.prior={"name":"boltzmann_machine","graph":"king"}', "model.groups=[8,8]", "model.hidden=[12]"]
    recipe = _recipe(images, "power_law", 2, 6, *changes)
    train(recipe, tmp_path / "run", say=quiet)
    last = json.loads((tmp_path / "run" / "metrics.jsonl").read_text().splitlines()[-1])
    assert torch.isfinite(torch.tensor(last["validation_bound"]))


def test_what_does_not_fit_is_refused(images: Path) -> None:
    with pytest.raises(UsageError, match="importance_samples above 1 needs an objective that is an importance weight"):
        recipes.build("table2.rbm", [], ["training.importance_samples=2"])
    with pytest.raises(UsageError, match="'gaussian_integral' needs the smoothing gaussian with one scale"):
        recipes.build("relaxed.gaussian_integral", [], ["smoothing.name=exponential"])
    with pytest.raises(UsageError, match="trains with boltzmann, rolfe, relaxed, gaussian_integral"):
        recipes.build("table2.joint", [], ["training.objective=relaxed"])


class _Products(TorchDispatchMode):
    """Counts the subnormal numbers that matrix products read."""

    def __init__(self) -> None:
        super().__init__()
        self.products = self.subnormal = 0

    def __torch_dispatch__(
        self, function: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if function in (torch.ops.aten.mm.default, torch.ops.aten.addmm.default):
            self.products += 1
            self.subnormal += sum(int(((x != 0) & (x.abs() < torch.finfo(x.dtype).tiny)).sum()) for x in args)
        return function(*args, **(kwargs or {}))


def test_products_of_a_power_law_step_read_no_subnormal_numbers(images: Path) -> None:
    """They would take four times as long on some processors: samples, mean-field units and gradients reach 1e-38."""
    recipe = _recipe(images, "power_law", 1, 300, "model.groups=[100,100]", "training.kl_warmup=0")
    dataset = runs.dataset_of(recipe)
    state = build(recipe, dataset, "cpu")
    products = _Products()
    with products:
        for _ in range(3):
            state = update(recipe, state, dataset.images("train")[:100])[0]
    assert products.products > 50
    assert products.subnormal == 0
