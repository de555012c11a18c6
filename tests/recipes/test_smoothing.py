"""A recipe names the parameters of its smoothing: forms, defaults, refusals, groups, and what older files say."""

import hashlib
import json
import math
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import pytest
import torch

from dvaepp import recipes, runs
from dvaepp.errors import UsageError
from dvaepp.models.noise import BatchNoise
from dvaepp.objectives import boltzmann_kl
from dvaepp.priors import RBM
from dvaepp.recipes.schema import Recipe
from dvaepp.recipes.smoothing import AnnealedConfig, SmoothingConfig
from dvaepp.reproduction.records import Record
from dvaepp.smoothing import MEMBERS, Exponential, Overlapping, SpikeExponential
from dvaepp.training import train
from dvaepp.training.schedules import smoothing_at
from dvaepp.training.state import build
from dvaepp.training.step import step
from tests.training.toy import quiet, recipe, stripes

ROOT = Path(__file__).resolve().parents[2]
OVERLAPPING = sorted(name for name, member in MEMBERS.items() if issubclass(member, Overlapping))


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return stripes(tmp_path_factory.mktemp("data"))


# Names, forms and defaults.


@pytest.mark.parametrize("name", OVERLAPPING)
def test_another_smoothing_brings_its_own_parameters_and_defaults(name: str) -> None:
    """The demo's β = 10 stays with the exponential: it would be a scale of 10 for a logistic, which learns nothing."""
    found = recipes.build("demo", (), [f"smoothing.name={name}"]).smoothing
    own = {field.name: field.default for field in fields(MEMBERS[name]) if field.name != "validate_args"}
    expected = {"beta": 10.0} if name == "exponential" else own
    assert found.model_dump() == {"name": name, **expected}
    assert smoothing_at(found, 0.5) == MEMBERS[name](**expected)


@pytest.mark.parametrize("order", [1, -1])
def test_the_parameters_of_the_new_smoothing_may_be_given_in_any_order(order: int) -> None:
    changes = ["smoothing.name=logistic", "smoothing.scale=0.25"][::order]
    assert recipes.build("demo", (), changes).smoothing.model_dump() == {
        "name": "logistic",
        "scale": 0.25,
        "loc0": 0.0,
        "loc1": 1.0,
    }


@pytest.mark.parametrize(
    "changes, message",
    [
        (
            ["smoothing.name=logistic", "smoothing.beta=8"],
            "logistic has no parameter 'beta': it takes scale, loc0, loc1",
        ),
        (["smoothing.scale=0.1"], "exponential has no parameter 'scale': it takes beta"),
        (["smoothing.start=5"], "exponential has no parameter 'start': it takes beta; e.g. smoothing.beta=NUMBER"),
        (['smoothing={"name": "concrete", "beta": 8}'], "concrete has no parameter 'beta': it takes temperature"),
        (["smoothing.beta=-1"], "beta must be finite and > 0, got -1"),
        (['smoothing.beta={"start": 5}'], "beta of exponential is {'start': 5}; give NUMBER"),
        (['smoothing.beta={"start": 5, "end": -1}'], "beta must be finite and > 0, got -1"),
        (["smoothing.beta=sharp"], "beta of exponential is 'sharp'; give NUMBER"),
        (["smoothing.beta=true"], "beta of exponential is True; give NUMBER"),
        (["smoothing.beta=1e9"], "beta of exponential is 1000000000.0; give NUMBER"),
        (["smoothing.beta=[]"], "a list has one value per group"),
        (["smoothing.beta=[[8], 8]"], r"beta of exponential is \[8\]; give NUMBER"),
        (["smoothing.beta=[8, 8, 8]"], "smoothing has values for 3 groups, and the model has 2"),
        (["smoothing.name=logistic", "smoothing.scale=[1, 1]", "smoothing.loc0=[0, 0, 0]"], r"each, not \[2, 3\]"),
        (["smoothing.name=logistic", 'smoothing.loc0={"start": 0, "end": 2}'], "loc1 must be finite and > loc0"),
        (["smoothing.name=quadratic"], "no smoothing called 'quadratic'; there are binary, concrete"),
    ],
)
def test_what_does_not_fit_is_refused_in_one_line(changes: list[str], message: str) -> None:
    with pytest.raises(UsageError, match=message) as caught:
        recipes.build("demo", (), changes)
    assert "\n" not in str(caught.value)


def test_a_value_is_a_number_a_pair_or_one_of_these_per_group() -> None:
    def at(t: float, *changes: str) -> object:
        chosen = recipes.build("demo", (), changes)
        assert Recipe.model_validate_json(chosen.model_dump_json()) == chosen
        return smoothing_at(chosen.smoothing, t)

    assert at(0.5, "smoothing.beta=7") == Exponential(7.0)
    annealed = 'smoothing.beta={"start": 6, "end": 16}'
    assert [at(t, annealed) for t in (0.0, 0.5, 1.0)] == [Exponential(beta) for beta in (6.0, 11.0, 16.0)]
    assert at(1.0, "smoothing.beta.end=16") == Exponential(16.0), "a number gets an end of its own"
    assert at(0.0, "smoothing.beta.end=16") == Exponential(10.0)
    assert at(0.5, 'smoothing.beta=[7, {"start": 6, "end": 16}]') == [Exponential(7.0), Exponential(11.0)]
    mixed = at(0.5, "smoothing.name=uniform_exponential", "smoothing.beta=[7, 9]", "smoothing.mix=0.1")
    assert mixed == [MEMBERS["uniform_exponential"](beta, 0.1) for beta in (7.0, 9.0)]  # type: ignore[call-arg]


def test_sharpness_is_the_first_parameter() -> None:
    """What metrics and evaluation call beta: a number, a list with one per group, inf for binary units."""
    assert SmoothingConfig.of("exponential", beta=AnnealedConfig(start=6, end=16)).sharpness(1.0) == 16.0
    assert SmoothingConfig.of("gaussian", scale=0.3).sharpness(0.0) == 0.3
    assert SmoothingConfig.of("exponential", beta=[8, 10]).sharpness(1.0) == [8.0, 10.0]
    assert SmoothingConfig.of("binary").sharpness(1.0) == "inf"


@dataclass(frozen=True)
class Blunt(Exponential):
    """A smoothing as somebody may add it: one more parameter, without a default."""

    floor: float = 0.0
    width: float | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.width is None or self.width <= 0:
            raise ValueError(f"width must be > 0, got {self.width}")


def test_a_new_smoothing_is_trained_without_a_change_to_recipes(images: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(MEMBERS, "blunt", Blunt)
    with pytest.raises(UsageError, match="width of blunt has no default: give width=NUMBER"):
        recipes.build("demo", (), ["smoothing.name=blunt"])
    with pytest.raises(UsageError, match="blunt: width must be > 0, got -1"):
        recipes.build("demo", (), ["smoothing.name=blunt", "smoothing.width=-1"])
    chosen = recipe(images, smoothing__name="blunt", smoothing__width=2, smoothing__beta=5)
    assert smoothing_at(chosen.smoothing, 0.0) == Blunt(5.0, width=2.0)
    dataset = runs.dataset_of(chosen)
    step(chosen, dataset, build(chosen, dataset), "cpu")


# Files of before parameters had names.


@pytest.mark.parametrize(
    "old, new",
    [
        ({"name": "exponential", "start": 10.0, "end": 10.0}, {"name": "exponential", "beta": 10.0}),
        ({"name": "exponential", "start": 6, "end": 16}, {"name": "exponential", "beta": {"start": 6.0, "end": 16.0}}),
        ({"name": "exponential", "end": 9.0}, {"name": "exponential", "beta": {"start": 8.0, "end": 9.0}}),
        ({"name": "gaussian", "start": 10.0, "end": 10.0}, {"name": "gaussian", "scale": 10.0}),
        ({"name": "binary", "start": 8.0, "end": 8.0}, {"name": "binary"}),
        ({}, {"name": "exponential", "beta": 8.0}),
    ],
)
def test_start_and_end_are_those_of_the_first_parameter(old: dict[str, object], new: dict[str, object]) -> None:
    """A run that was trained with a scale of 10 loads as just that."""
    assert SmoothingConfig.model_validate(old).model_dump() == new


def test_old_and_new_names_do_not_mix() -> None:
    with pytest.raises(ValueError, match="exponential has no parameter 'start'"):
        SmoothingConfig.model_validate({"name": "exponential", "start": 6, "beta": 8})


def _old_files() -> list[Path]:
    pretrained = [path for path in (ROOT / "dvaepp/pretrained").rglob("*.json") if path.name != "evaluation.json"]
    return sorted([*pretrained, *(ROOT / "results").glob("*.json")])


@pytest.mark.parametrize("path", _old_files(), ids=lambda path: path.name)
def test_old_recipes_checkpoints_and_records_load_with_the_same_smoothing(path: Path) -> None:
    tree = json.loads(path.read_text())
    stored = tree if path.name == "recipe.json" else tree["recipe"]
    loaded, old = Recipe.model_validate(stored), stored["smoothing"]
    if "start" in old and old["name"] != "binary":
        assert (loaded.smoothing.sharpness(0.0), loaded.smoothing.sharpness(1.0)) == (old["start"], old["end"])
        member: Any = {"exponential": Exponential, "spike_exponential": SpikeExponential}[old["name"]]
        assert smoothing_at(loaded.smoothing, 1.0) == member(old["end"])
    assert not recipes.differences(stored, loaded), "a run goes on with the recipe that it was begun with"


def test_the_digest_of_a_record_is_that_of_the_recipe_as_it_was_written() -> None:
    """So that it can still be checked where fields have since been renamed."""
    for path in (ROOT / "results").glob("*.json"):
        record = Record.model_validate_json(path.read_text())
        written = json.dumps(record.recipe, sort_keys=True).encode()
        assert hashlib.sha256(written).hexdigest() == record.recipe_sha256, path.name


# A value for each group.


def test_each_group_is_drawn_and_scored_with_its_own_smoothing() -> None:
    """The KL of Sec. 5 with β = 3 and 9, from the densities as printed and a loop over couplings."""
    g = torch.Generator().manual_seed(0)
    sizes, betas = (2, 3), (3.0, 9.0)
    prior = RBM(2, 3).double()
    with torch.no_grad():
        for parameter in prior.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=g, dtype=torch.float64))
    logits = [torch.randn(4, n, generator=g, dtype=torch.float64) for n in sizes]
    smoothings = [Exponential(beta) for beta in betas]
    rho = [torch.rand(4, n, generator=g, dtype=torch.float64) for n in sizes]
    zeta = [s.sample(group, noise) for s, group, noise in zip(smoothings, logits, rho, strict=True)]
    found = boltzmann_kl(prior, logits, zeta, smoothings, log_z=0.0)

    mu = torch.sigmoid(torch.cat(logits, 1))
    densities = [
        torch.exp(-betas[0] * zeta[0]),
        torch.exp(-betas[0] * (1 - zeta[0])),
    ]  # r(ζ|0), r(ζ|1) up to one factor
    nu = mu[:, :2] * densities[1] / ((1 - mu[:, :2]) * densities[0] + mu[:, :2] * densities[1])
    entropy = -(mu * mu.log() + (1 - mu) * (1 - mu).log()).sum(1)
    energy = -(mu @ torch.cat([prior.bias_left, prior.bias_right]))
    for i in range(2):
        for j in range(3):
            energy = energy - nu[:, i] * prior.weight[i, j] * mu[:, 2 + j]
    torch.testing.assert_close(found, energy - entropy)
    with pytest.raises(ValueError, match="one for each of 2, got 3"):
        boltzmann_kl(prior, logits, zeta, [*smoothings, Exponential(1.0)], log_z=0.0)


@pytest.mark.parametrize("name", ["table2.rbm", "table2.marginal", "table2.rolfe", "table3.rbm", "table3.bernoulli"])
def test_groups_reach_their_own_values_and_equal_ones_change_nothing(name: str, images: Path) -> None:
    """All groups of a model: the global ones, then the local ones of Bernoulli units."""
    chosen = recipe(images, name)
    groups = chosen.model.smoothed_groups
    assert groups == {"table3.rbm": 4, "table3.bernoulli": 4 + 3}.get(name, 2)
    dataset = runs.dataset_of(chosen)
    state = build(chosen, dataset)
    x = dataset.images("train", torch.arange(6))

    def bound(beta: object) -> torch.Tensor:
        smoothing = smoothing_at(recipes.override(chosen, [f"smoothing.beta={json.dumps(beta)}"]).smoothing, 0.0)
        noise = BatchNoise(torch.Generator().manual_seed(0), x.device)
        found = state.model.eval().terms(x, smoothing, noise, objective=chosen.training.objective)
        return found.log_likelihood - found.kl.sum(0)

    assert torch.equal(bound(6.0), bound([6.0] * groups))
    for group in range(groups):
        assert not torch.allclose(bound(6.0), bound([1.0 if a == group else 6.0 for a in range(groups)]))


@pytest.mark.parametrize("name", ["table2.rbm", "table3.rbm"])
def test_a_run_with_a_value_per_group_is_trained_and_evaluated(name: str, images: Path, tmp_path: Path) -> None:
    groups = 4 if name == "table3.rbm" else 2
    betas = [{"start": 5, "end": 6 + a} for a in range(groups)]
    chosen = recipe(images, name, steps=4, smoothing__beta=json.dumps(betas))
    run = train(chosen, tmp_path / "run", say=quiet)
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert next(line["beta"] for line in lines if "beta" in line) == [5.0] * groups
    result = runs.evaluate(run, samples=3, limit=20, beta="training")
    assert result["beta"] == [6.0 + a for a in range(groups)] and math.isfinite(result["log_likelihood"])
    assert runs.evaluate(run, samples=3, limit=20)["beta"] == "inf"


# The defaults learn.


def _learned(images: Path, folder: Path, name: str, **changes: object) -> tuple[float, list[int]]:
    """After 200 steps: the gain over the factorial likelihood of the mean image, and the active units.

    The gain is the lower of the smoothed model's bound and the binary model's log-likelihood: a smoothing that is far
    from binary may score well by itself.
    """
    settings = {"training__kl_warmup": 0, "optimizer__warmup": 0, "training__batch_size": 50, **changes}
    base = "table1.joint" if name == "concrete" else "table2.rbm"
    chosen = recipe(images, base, steps=200, optimizer__learning_rate=3e-3, smoothing__name=name, **settings)
    run = train(chosen, folder, say=quiet)
    dataset = runs.dataset_of(chosen)
    mean = dataset.train_mean.flatten().clamp(0.001, 0.999)
    x = dataset.images("validation").flatten(1)
    factorial = (x * mean.log() + (1 - x) * (1 - mean).log()).sum(1).mean().item()
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    last = [line for line in lines if "validation_bound" in line][-1]
    return min(last["validation_bound"], last["validation_log_likelihood"]) - factorial, last["active_units"]


@pytest.mark.slow
@pytest.mark.parametrize("name", [*OVERLAPPING, "concrete"])
def test_the_default_of_every_smoothing_learns(name: str, images: Path, tmp_path: Path) -> None:
    """Bound and log-likelihood pass the mean image by 5 nats, and units of every group are in use."""
    gain, active = _learned(images, tmp_path / "run", name)
    assert gain > 5 and all(active)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["gaussian", "logistic"])
def test_the_sharpness_of_another_smoothing_does_not_learn(name: str, images: Path, tmp_path: Path) -> None:
    """A scale of 10, as it used to be taken over from β = 10: the test above would see it."""
    gain, active = _learned(images, tmp_path / "run", name, smoothing__scale=10)
    assert gain < 5 or not all(active)
