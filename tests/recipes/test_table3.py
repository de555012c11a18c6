"""Every cell of Table 3 and of App. I: what it says, and that it builds, trains, samples and evaluates."""

import math
import os

import pytest
import torch

from dvaepp import recipes, runs
from dvaepp.data import Dataset
from dvaepp.errors import UsageError
from dvaepp.evaluation import log_likelihood
from dvaepp.recipes import Recipe
from dvaepp.training.schedules import smoothing_at
from dvaepp.training.state import build
from dvaepp.training.step import step

DATASETS = ("mnist_static", "mnist_dynamic", "omniglot", "caltech", "cifar10")
ROWS = {  # global, local units and objective of each row of Table 3
    "continuous": ("normal", "normal", "marginal"),
    "rolfe": ("rbm", "normal", "rolfe"),
    "rbm": ("rbm", "normal", "boltzmann"),
    "rbm_bernoulli": ("rbm", "bernoulli", "boltzmann"),
    "bernoulli": ("bernoulli", "bernoulli", "marginal"),
}
TABLE3 = [(f"table3.{row}", f"dataset={dataset}") for row in ROWS for dataset in DATASETS]
ABLATIONS = [
    *(("ablations.local_groups", f"groups={n}") for n in (8, 12, 16, 20, 24)),
    *(("ablations.global_groups", f"groups={n}") for n in (1, 2, 4)),
    *(("ablations.decoder", f"dataset={d}", f"conditional={c}") for d in DATASETS for c in ("true", "false")),
    *((f"ablations.{name}", f"dataset={d}")
      for name in ("no_global", "no_balancing") for d in ("mnist_static", "omniglot", "cifar10")),
]  # fmt: skip


def _dataset(name: str, number: int = 6) -> Dataset:
    """Noise of the shape and kind of a named data set."""
    g = torch.Generator().manual_seed(0)
    colour, dynamic = name == "cifar10", name in ("mnist_dynamic", "omniglot")
    shape = (3, 32, 32) if colour else (1, 28, 28)
    train, fixed = 256 if colour or dynamic else 2, 256 if colour else 2
    images = [torch.randint(n, (number, *shape), generator=g).to(torch.uint8) for n in (train, fixed, fixed)]
    return Dataset(name, shape, "logistic_mixture" if colour else "bernoulli", *images, dynamic)


def _exercise(recipe: Recipe) -> None:
    """Two steps, a sample and an estimate of four images with eight samples: all finite, all in range."""
    dataset = _dataset(recipe.data.name)
    state = build(recipe, dataset)
    losses = []
    for _ in range(2):
        state, found, loss = step(recipe, dataset, state, "cpu")
        losses.append(loss.item())
        assert found.kl.shape[1] == len(found.log_likelihood) == recipe.training.batch_size
    assert all(map(math.isfinite, losses)), losses
    gradients = {name: p.grad for name, p in state.model.named_parameters()}
    assert all(g is not None and torch.isfinite(g).all() for g in gradients.values()), "all take part in the loss"
    g = torch.Generator().manual_seed(0)
    low = -1 if recipe.data.name == "cifar10" else 0
    images = runs.Trained(state.model, recipe, {}).sample(2, g)
    assert images.shape == (2, *dataset.image_shape) and low <= images.min() and images.max() <= 1
    smoothing = smoothing_at(recipe.smoothing, 1.0) if recipe.evaluation.beta == "training" else None
    x = dataset.images("test", torch.arange(4))
    estimates = log_likelihood(state.model, x, 8, log_z=state.log_z, smoothing=smoothing, generator=g)
    assert estimates.shape == (4,) and torch.isfinite(estimates).all() and (estimates < 0).all()


@pytest.mark.parametrize(
    "name, arguments",
    [
        ("table3.rbm", ["dataset=omniglot"]),
        ("table3.rolfe", ["dataset=caltech"]),
        ("table3.continuous", ["dataset=mnist_static"]),
        ("table3.rbm_bernoulli", ["dataset=cifar10"]),
        ("table3.bernoulli", ["dataset=mnist_dynamic"]),
        ("ablations.local_groups", ["groups=8"]),
        ("ablations.decoder", ["dataset=caltech", "conditional=false"]),
        ("ablations.no_global", ["dataset=omniglot"]),
    ],
)
def test_small_recipes_train_sample_and_evaluate(name: str, arguments: list[str]) -> None:
    changes = ["training.batch_size=3", "chains.num_chains=10", "chains.num_sweeps=5"]
    _exercise(recipes.build(name, [*arguments, "size=small"], changes))


# all 49 take four minutes: the suite has every sixth, a diagonal through rows and data sets; DVAEPP_CELLS=1 has all
CELLS = (TABLE3 + ABLATIONS)[:: 1 if "DVAEPP_CELLS" in os.environ else 6]


@pytest.mark.slow
@pytest.mark.parametrize("cell", CELLS, ids=" ".join)
def test_recipes_of_table_3_and_app_i_train_sample_and_evaluate(cell: tuple[str, ...]) -> None:
    """At the paper's size, batch 2."""
    name, *arguments = cell
    _exercise(recipes.build(name, arguments, ["training.batch_size=2"]))


@pytest.mark.parametrize("row", ROWS)
@pytest.mark.parametrize("dataset", DATASETS)
@pytest.mark.parametrize("size", ["paper", "small"])
def test_table_3_says_what_the_paper_says(row: str, dataset: str, size: str) -> None:
    """Sec. 7.3 and App. G."""
    recipe = recipes.build(f"table3.{row}", [f"dataset={dataset}", f"size={size}"])
    m, colour = recipe.model, dataset == "cifar10"
    assert (m.global_kind, m.local_kind, recipe.training.objective) == ROWS[row]
    assert m.local_groups == 16 and m.local_channels == (32 if size == "paper" else 8)
    assert m.global_units == (128 if colour else 16) and m.global_groups == 4
    assert m.conditional == (dataset not in ("mnist_static", "mnist_dynamic"))
    assert m.likelihood == ("logistic_mixture" if colour else "bernoulli")
    smoothing = "spike_exponential" if row == "rolfe" else "exponential"
    assert (recipe.smoothing.name, recipe.smoothing.sharpness(0.0), recipe.smoothing.sharpness(1.0)) == (
        smoothing,
        8,
        8,
    )
    assert (recipe.optimizer.name, recipe.optimizer.learning_rate) == ("adamax", 1e-3)
    assert recipe.optimizer.plateau is not None and recipe.optimizer.warmup == 0 and recipe.optimizer.decays == ()
    assert recipe.training.batch_size == 100 and recipe.training.kl_balance
    assert (recipe.evaluation.samples, recipe.evaluation.beta) == (4000, "inf")


TABLE4 = {
    "omniglot": [
        ["32d", "32", "64d", "64", "128d"], ["256d", "512d"], ["128u", "128u"], ["32"] * 4, ["32"] * 2, ["16"],
        [["16u", "16"], ["16u", "8"], ["8u"]],
    ],
    "caltech": [
        ["8d", "8d"], ["8d", "16d", "16d"], ["32u"] * 3, ["32"] * 4, ["32"] * 4, ["16"],
        [["8", "8"], ["8u", "4"], ["4u"]],
    ],
    "cifar10": [
        ["64d", "64", "256d", "256"], ["512d", "512", "1024d", "1024d"], ["128u", "64u", "32u"], ["32"], ["32"] * 4,
        ["256"], [["128", "128"], ["64u", "64"], ["32u"]],
    ],
}  # fmt: skip
MODULES = ("down1", "down2", "upsample", "posterior", "prior", "context", "upsamples")


@pytest.mark.parametrize("dataset", DATASETS)
def test_architectures_are_those_of_table_4(dataset: str) -> None:
    """MNIST has OMNIGLOT's; the last block of q and p of h, 64 filters, follows from 32 normal units."""
    tree = recipes.build("table3.rbm", [f"dataset={dataset}"]).model_dump(mode="json")["model"]
    assert [tree[name] for name in MODULES] == TABLE4[dataset if dataset in TABLE4 else "omniglot"]
    assert tree["input_filters"] == 32 and tree["image_size"] == 32


def test_small_divides_widths_by_four_and_keeps_the_rest() -> None:
    paper, small = (recipes.build("table3.rbm", ["dataset=omniglot", f"size={s}"]).model for s in ("paper", "small"))
    assert small.down1 == ("8d", "8", "16d", "16", "32d") and small.context == ("4",)
    assert small.upsamples == (("4u", "4"), ("4u", "4"), ("4u",)) and small.input_filters == 8
    kept = set(type(paper).model_fields) - {*MODULES, "input_filters", "local_channels"}
    assert all(getattr(paper, name) == getattr(small, name) for name in kept)


@pytest.mark.parametrize("cell", ABLATIONS, ids=" ".join)
def test_an_ablation_changes_one_thing_and_is_evaluated_at_the_training_beta(cell: tuple[str, ...]) -> None:
    name, *arguments = cell
    changed = recipes.build(name, arguments)
    rbm = recipes.build("table3.rbm", [f"dataset={changed.data.name}"])
    assert changed.evaluation.beta == "training" and changed.name == name
    a, b = changed.model_dump(), rbm.model_dump()
    differ = {f"{s}.{k}" for s in ("model", "training", "smoothing", "optimizer") for k in a[s] if a[s][k] != b[s][k]}
    allowed = {
        "local_groups": {"model.local_groups"},
        "global_groups": {"model.global_groups"},
        "decoder": {"model.conditional"},
        "no_global": {"model.global_kind", "training.objective"},
        "no_balancing": {"training.kl_balance"},
    }[name.partition(".")[2]]
    assert differ <= allowed
    value = dict(pair.split("=") for pair in arguments)
    if "groups" in value:
        assert getattr(changed.model, name.partition(".")[2]) == int(value["groups"])
    if "conditional" in value:
        assert changed.model.conditional == (value["conditional"] == "true")
    assert changed.training.kl_balance == (name != "ablations.no_balancing")


def test_unknown_data_sets_and_sizes_are_named() -> None:
    with pytest.raises(UsageError, match="unknown data set .cifar..*cifar10"):
        recipes.build("table3.rbm", ["dataset=cifar"])
    with pytest.raises(UsageError, match="size is paper or small, got 'tiny'"):
        recipes.build("table3.rbm", ["size=tiny"])
