"""How often a run validates: by counts that are checked by hand, stored with the run, and never counted again."""

import json
from pathlib import Path

import pytest
import torch

from dvaepp import recipes
from dvaepp.models import build
from dvaepp.recipes.schema import Recipe
from dvaepp.training import checkpoint, interval, train
from dvaepp.training.state import example_model
from tests.training.toy import quiet, recipe, stripes


def _every(made: Recipe, validation: int = 10_000) -> float:
    every = interval.with_interval(made, example_model(made), validation).training.validate_every
    assert every is not None
    return every


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return stripes(tmp_path_factory.mktemp("data"))


def test_the_multiply_adds_of_dense_networks_are_those_of_their_matrices() -> None:
    made = recipes.build("table2.rbm", ["layers=2", "linear=false"])
    model = example_model(made)
    first = 784 * 200 + 200 * 200 + 200 * 200
    second = (784 + 200) * 200 + 200 * 200 + 200 * 200
    decoder = 400 * 200 + 200 * 200 + 200 * 784
    cross_entropy = 200 * 200  # ν W; products with the biases are vectors, and left out
    assert interval.forward_work(made, model) == first + second + decoder + cross_entropy
    assert interval.sweep_work(model) == 2 * 200 * 200
    work = interval.Work(forward=10, sweep=7, exact_log_z=False)
    assert work.step(made) == 3 * 100 * 10 + 100 * 40 * 7
    assert work.validation(made, 10_000) == 1000 * 101 * 10 + interval.LOG_Z_SWEEPS * 7
    assert work.validation(made, 500) == 500 * 101 * 10 + interval.LOG_Z_SWEEPS * 7
    assert work._replace(exact_log_z=True).validation(made, 500) == 500 * 101 * 10


def test_a_compiled_model_counts_as_a_plain_one(images: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The interval must not depend on whether a machine has a compiler."""
    made = recipe(images, "table3.rbm")
    mean = torch.zeros(1, 6, 6, dtype=torch.float32, device="cpu")
    compiled = build.build_model(made.model, mean)
    monkeypatch.setattr(build, "with_kernels", lambda model: model)
    plain = build.build_model(made.model, mean)
    assert interval.forward_work(made, compiled) == interval.forward_work(made, plain) > 0


@pytest.mark.parametrize(
    ("name", "arguments", "every"),
    [
        ("table1.rebar", [], 0.02),
        ("table2.rbm", ["layers=2", "linear=false"], 0.02),
        ("table2.marginal", [], 0.02),
        ("table3.rbm", ["dataset=caltech"], 1 / 400),
        ("table3.continuous", ["dataset=cifar10"], 1 / 400),
    ],
)
def test_full_schedules_of_the_paper_keep_their_interval(name: str, arguments: list[str], every: float) -> None:
    made = recipes.build(name, arguments)
    assert (made.training.validate_every or _every(made)) == every


def test_a_short_schedule_spends_about_a_tenth_of_its_work_on_validation() -> None:
    for name, steps in [("table2.rbm", 60_000), ("table2.rbm", 10_000), ("table3.rbm", 3000), ("demo", 4500)]:
        made = recipes.build(name, (), [f"training.steps={steps}"])
        assert made.training.validate_every is None
        model = example_model(made)
        work = interval.Work(interval.forward_work(made, model), interval.sweep_work(model), name == "table3.rbm")
        total = work.validation_in_steps(made, 1000) / _every(made, 1000)
        assert 0.05 < total / (total + steps) <= 0.1
    assert _every(recipes.build("table2.rbm", (), ["training.steps=600"])) == 1


def test_what_a_user_states_is_kept_and_old_recipes_keep_theirs() -> None:
    stated = recipes.build("table3.rbm", (), ["training.steps=600", "training.validate_every=0.25"])
    assert stated.training.validate_every == 0.25 == _every(stated)
    old = recipes.build("table2.rbm").model_dump(mode="json")
    old["training"] |= {"steps": 600, "validate_every": 0.02}
    assert _every(Recipe.model_validate(old)) == 0.02
    assert recipes.override(stated, ["training.steps=700"]).training.validate_every == 0.25


def test_a_run_stores_its_interval_validates_rarely_and_at_its_last_step(images: Path, tmp_path: Path) -> None:
    made = recipe(images, steps=200, training__validate_every="null", training__validation_samples=50)
    run = train(made, tmp_path / "run", say=quiet)
    stored = json.loads((run / "recipe.json").read_text())["training"]["validate_every"]
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    validated = [line["step"] for line in lines if "validation_bound" in line]
    assert len(validated) == round(1 / stored) < 10 and validated[-1] == 200


def test_a_resumed_run_never_counts_again(images: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = recipe(images, steps=60, training__validate_every="null", training__validation_samples=2)
    run = train(made, tmp_path / "run", say=quiet)
    stored = checkpoint.read(run / "checkpoints").recipe["training"]["validate_every"]
    monkeypatch.setattr(interval, "SHARE", 0.5)  # as another version might count
    longer = recipes.override(made, ["training.steps=120"])
    assert longer.training.validate_every is None
    train(longer, run, resume=True, say=quiet)
    assert json.loads((run / "recipe.json").read_text())["training"]["validate_every"] == stored
