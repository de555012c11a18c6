"""What a recipe takes, counted on the meta device, beside models that are built; and what is refused for it.

The machine of these tests has 16 GiB, whatever runs them."""

import os

import pytest
import torch

from dvaepp import cli, recipes
from dvaepp.errors import UsageError
from dvaepp.models.noise import BatchNoise
from dvaepp.recipes import budget
from dvaepp.smoothing import Exponential
from dvaepp.training.state import example_model

PAPER = [
    (name, [f"dataset={dataset}", f"size={size}"])
    for name in ("table3.rbm", "table3.continuous", "table3.bernoulli", "ablations.no_global")
    for dataset in ("omniglot", "caltech", "cifar10")
    for size in ("small", "paper")
] + [("ablations.decoder", ["conditional=false"]), ("ablations.global_groups", ["groups=1"])]
DENSE = [
    (f"table2.{name}", [f"layers={layers}", f"linear={linear}"])
    for name in ("rbm", "rolfe", "joint", "marginal")
    for layers in (1, 2, 4)
    for linear in ("true", "false")
] + [("table1.rebar", ["linear=false"]), ("estimators.vimco", []), ("demo", [])]


@pytest.fixture(autouse=True)
def machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(budget, "memory", lambda device="cpu": 16 * 2**30)


@pytest.mark.parametrize(("name", "arguments"), PAPER + DENSE)
def test_parameters_are_counted_as_they_are_built(name: str, arguments: list[str]) -> None:
    recipe = recipes.build(name, arguments)
    with torch.device("meta"):
        model = example_model(recipe)
    assert budget.cost(recipe).parameters == sum(p.numel() for p in model.parameters())


@pytest.mark.parametrize(
    "overrides",
    [
        ["model.image_size=64", 'model.down2=["8d", "8", "8d", "9d"]', 'model.upsample=["8u", "7u", "8u"]']
        + ['model.upsamples=[["16"], ["16u"], ["8u", "8"], ["8u"]]', "model.dense=[11, 13]"],
        ["model.posterior=[]", "model.prior=[]", "model.global_units=6", "model.global_groups=2"],
        ["model.upsamples=[]", 'model.context=["16u", "16u", "16u"]', "model.conditional=false"],
    ],
)
def test_parameters_of_ones_own_architecture_are_counted_too(overrides: list[str]) -> None:
    recipe = recipes.build("table3.rbm", ["dataset=omniglot"], overrides)
    with torch.device("meta"):
        model = example_model(recipe)
    assert budget.cost(recipe).parameters == sum(p.numel() for p in model.parameters())


def test_every_recipe_of_the_package_is_within_the_budget() -> None:
    for name, function in recipes.functions().items():
        recipe = function()
        assert recipe.name == name
        budget.check(recipe)
    largest = recipes.build("table3.rbm", ["dataset=cifar10"])
    assert budget.cost(largest).parameters == 57_851_246 and largest.training.batch_size == 100


def test_measured_peaks_lie_below_the_estimates() -> None:
    """MiB that a step took, one measurement each: model and batch, on one thread, without saving."""
    image128 = ["model.image_size=128", 'model.down1=["64", "64", "64d", "64d", "64d"]', "training.batch_size=10"]
    image128 += [
        'model.down2=["8d", "8d", "8d", "8d"]',
        'model.upsample=["8u", "8u", "8u", "8u"]',
        "model.local_groups=2",
    ]
    image128 += ['model.context=["8"]', 'model.upsamples=[["8"], ["8u"], ["8u"], ["8u"]]']
    wide = ["model.groups=[2000]", "model.hidden=[2000, 2000]", "training.batch_size=5000"]
    for name, arguments, overrides, measured in [
        ("table3.rbm", ["dataset=cifar10"], [], 3859),
        ("table3.rbm", ["dataset=omniglot"], [], 1144),
        ("table3.rbm", ["dataset=omniglot", "size=small"], image128, 731),
        ("table2.rbm", [], wide, 1150),
        ("table2.rbm", [], ["model.groups=[8000]"], 854),
        ("table2.rbm", [], ["chains.num_chains=200000"], 641),
    ]:
        recipe = recipes.build(name, arguments, overrides)
        cost = budget.cost(recipe)
        total = cost._replace(evaluation=0).total(recipe)
        assert measured < total / 2**20 < 3 * measured


def test_what_a_batch_costs_is_what_autograd_saves_of_a_real_step() -> None:
    """Against a model with numbers and a list of every tensor that its graph holds, each storage once."""
    for name, arguments in [("table2.rbm", ["layers=2", "linear=false"]), ("table3.rbm", ["size=small"])]:
        recipe = recipes.build(name, arguments)
        model = recipe.model.build(torch.full((1, 28, 28), 0.5, dtype=torch.float32))
        weights = {tensor.data_ptr() for tensor in (*model.parameters(), *model.buffers())}
        held: dict[int, torch.Tensor] = {}

        def keep(
            tensor: torch.Tensor, held: dict[int, torch.Tensor] = held, weights: set[int] = weights
        ) -> torch.Tensor:
            if tensor.untyped_storage().data_ptr() not in weights:
                held.setdefault(tensor.untyped_storage().data_ptr(), tensor)
            return tensor

        x = torch.zeros(4, 1, 28, 28, dtype=torch.float32)
        with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
            noise = BatchNoise(torch.Generator().manual_seed(0), x.device)
            model.terms(x, Exponential(8.0), noise, objective="boltzmann")
        real = 4 * sum(tensor.numel() for tensor in held.values()) / len(x)
        assert budget.cost(recipe).image / budget.SAVED == pytest.approx(real, rel=0.1)


def test_many_groups_are_counted_without_being_built() -> None:
    few = recipes.build("table3.rbm", ["dataset=omniglot", "size=small"], ["model.local_groups=9"])
    model = example_model(few)
    assert budget.cost(few).parameters == sum(p.numel() for p in model.parameters())
    many = recipes.build("table3.rbm", ["dataset=omniglot", "size=small"], ["model.local_groups=128"])
    assert budget.cost(many).parameters > 10 * budget.cost(few).parameters


def test_the_limit_is_the_memory_of_the_machine_or_of_the_device(monkeypatch: pytest.MonkeyPatch) -> None:
    recipe = recipes.build("table3.rbm", ["dataset=cifar10"])
    monkeypatch.setattr(budget, "memory", lambda device="cpu": {"cpu": 64, "cuda:1": 2}[device] * 2**30)
    budget.check(recipe)
    with pytest.raises(UsageError, match="more than the 2 that there are"):
        budget.check(recipe, device="cuda:1")


def test_the_memory_of_this_machine_is_plausible(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    assert 2**28 < budget.memory() <= os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


@pytest.mark.parametrize(
    ("name", "overrides", "parts"),
    [
        ("table2.rbm", ["model.groups=[100000, 100000]"], ["model.groups"]),
        ("table2.rbm", ["model.groups=[60000]", "chains.num_chains=1000000"], ["model.groups"]),
        ("table2.rbm", ["model.hidden=[100000, 100000]"], ["model.hidden"]),
        ("table2.joint", ["model.groups=[90000]", "training.batch_size=9000"], ["training.batch_size of at most"]),
        ("table2.rbm", ["chains.num_chains=1000000", "model.groups=[2000]"], ["chains.num_chains of at most"]),
        (
            "table2.marginal",
            ["training.importance_samples=1000", "training.batch_size=90000"],
            ["batch_size of at most"],
        ),
        ("table3.rbm", ["training.batch_size=100000"], ["training.batch_size of at most"]),
        ("table3.rbm", ['model.down1=["10000d", "32", "64d", "64", "128d"]'], ["model.down1"]),
        ("table3.rbm", ["model.local_groups=128", "model.local_channels=1000"], ["model.local_groups, local_channels"]),
        ("table3.rbm", ["model.dense=[100000, 100000]"], ["model.dense"]),
        ("estimators.vimco", ['estimator.options={"num_samples": 99999}'], ["estimator.options"]),
        (
            "table1.nvil",
            ['estimator.options={"hidden": 99999}', "training.batch_size=100000"],
            ["batch_size of at most"],
        ),
    ],
)
def test_a_recipe_too_large_is_refused_at_once(name: str, overrides: list[str], parts: list[str]) -> None:
    with pytest.raises(UsageError) as caught:
        recipes.build(name, (), overrides)
    message = str(caught.value)
    assert "GiB" in message and "\n" not in message
    for part in parts:
        assert part in message


def test_what_is_said_to_fit_fits() -> None:
    for name, field, overrides in [
        ("table2.rbm", "chains.num_chains", ["model.groups=[2000]", "chains.num_chains=1000000"]),
        ("table3.rbm", "training.batch_size", ["training.batch_size=100000"]),
    ]:
        with pytest.raises(UsageError) as caught:
            recipes.build(name, (), overrides)
        most = int(str(caught.value).partition("at most ")[2].split()[0])
        recipes.build(name, (), [*overrides[:-1], f"{field}={most}"])
        with pytest.raises(UsageError):
            recipes.build(name, (), [*overrides[:-1], f"{field}={most + most // 100 + 1}"])


def test_double_precision_counts_twice_and_the_size_of_images_counts() -> None:
    single = recipes.build("table2.rbm")
    double = recipes.build("table2.rbm", (), ["training.precision=float64"])
    assert budget.cost(double).model == 2 * budget.cost(single).model
    with pytest.raises(UsageError, match="model.groups"):
        budget.check(single, (1, 2048, 2048))
    budget.check(single, (1, 256, 256))


def test_the_command_line_refuses_it_with_2(capsys: pytest.CaptureFixture[str]) -> None:
    for override in ("model.groups=[1000000000]", "model.groups=[100000, 100000]"):
        with pytest.raises(SystemExit) as stop:
            cli.main(["train", "table2.rbm", "--set", override])
        assert stop.value.code == 2
        assert capsys.readouterr().err.count("\n") == 1
