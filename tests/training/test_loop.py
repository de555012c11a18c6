"""Short trainings on small images: they learn, they resume bit by bit, they stop when asked."""

import json
import math
from pathlib import Path

import pytest
import torch

from dvaepp import recipes, runs
from dvaepp.models.noise import BatchNoise
from dvaepp.recipes.schema import Recipe
from dvaepp.training import checkpoint, train
from dvaepp.training.schedules import kl_weight, learning_rate, smoothing_at
from dvaepp.training.state import build
from dvaepp.training.step import _loss, batch_indices
from tests.training.toy import SMALL_IMAGES, stripes


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return stripes(tmp_path_factory.mktemp("data"))


def _recipe(images: Path, name: str = "table2.rbm", steps: int = 60, **arguments: object) -> recipes.Recipe:
    settings = {
        "data.path": str(images),
        "model.groups": "[4,4]" if arguments.get("layers") == 2 else "[8]",
        "training.steps": steps,
        "training.validate_every": 0.5,
        "training.validation_samples": 10,
        "chains.num_chains": 50,
        "chains.num_sweeps": 5,
    }
    pairs = [f"{k}={str(v).lower()}" for k, v in arguments.items()]
    return recipes.build(name, pairs, [f"{k}={v}" for k, v in settings.items()])


def _quiet(line: str) -> None: ...


@pytest.mark.slow
@pytest.mark.parametrize(
    "name, layers, linear",
    [
        ("table2.rbm", 2, False),
        ("table2.rbm", 1, True),
        ("table2.rolfe", 2, False),
        ("table2.rolfe", 1, True),
        ("table2.joint", 2, False),
        ("table2.marginal", 2, False),
    ],
)
def test_every_objective_learns(name: str, layers: int, linear: bool, images: Path, tmp_path: Path) -> None:
    """The bound with KL weight 1 passes the factorial likelihood of the mean image by 3 nats, using its latents."""
    recipe = recipes.override(
        _recipe(images, name, 300, layers=layers, linear=linear), ["training.kl_warmup=0", "optimizer.warmup=0"]
    )
    train(recipe, tmp_path / "run", say=_quiet)
    records = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    last = [r for r in records if "validation_bound" in r][-1]
    x = runs.dataset_of(recipe).images("validation").reshape(60, -1)
    mean = runs.dataset_of(recipe).train_mean.reshape(-1).clamp(0.001, 0.999)
    factorial = (x * mean.log() + (1 - x) * (1 - mean).log()).sum(1).mean().item()
    assert last["validation_bound"] > factorial + 3
    assert last["validation_kl"] > 0.5
    assert last["validation_log_likelihood"] > last["validation_bound"]


@pytest.mark.parametrize("samples", [1, 3])
def test_the_gradient_keeps_the_score_for_importance_weights_alone(samples: int, images: Path) -> None:
    """Against the bound written out with the loop's own noise, in float64, where the two choices differ."""
    choices = [f"training.importance_samples={samples}", "training.kl_warmup=0", "training.precision=float64"]
    recipe = recipes.override(_recipe(images, "table2.marginal", layers=2, linear=True), choices)
    dataset = runs.dataset_of(recipe)
    state, x = build(recipe, dataset), dataset.images("train")[:7].double()
    state = state._replace(generator=torch.Generator().manual_seed(1))
    parameters = list(state.model.encoders.parameters())
    mine = torch.autograd.grad(_loss(recipe, state, x)[0], parameters)
    by_hand = []
    for weights in (False, True):
        noise = BatchNoise(torch.Generator().manual_seed(1), x.device, dtype=x.dtype)
        smoothing = smoothing_at(recipe.smoothing, 0.0)
        images = x.repeat(samples, 1, 1, 1)
        found = state.model.terms(images, smoothing, noise, objective="marginal", weights=weights)
        log_w = (found.log_likelihood - found.kl.sum(0)).reshape(samples, 7)
        bound = torch.logsumexp(log_w, 0) - math.log(samples)
        by_hand.append(torch.autograd.grad(-bound.mean(), parameters))
    right, wrong = by_hand if samples == 1 else by_hand[::-1]
    torch.testing.assert_close(mine, right, rtol=1e-9, atol=1e-12)
    assert not all(torch.allclose(a, b, rtol=0.01) for a, b in zip(mine, wrong, strict=True))


def _resumable(name: str, images: Path) -> Recipe:
    if name.startswith("table2"):
        return _recipe(images, name, 60, layers=2, linear=False)
    size = ["size=small"] if name.startswith("table3") else ["linear=false"]
    changes = {"data.path": str(images), "training.steps": "20", "training.validate_every": "0.5"}
    changes |= {"training.batch_size": "10", "training.validation_images": "20"}
    changes |= SMALL_IMAGES if name.startswith("table3") else {}
    return recipes.build(name, size, [f"{key}={value}" for key, value in changes.items()])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "changes"),
    [
        ("table2.rbm", []),
        ("table2.rbm", ["chains.sampler=tempering", 'chains.options={"num_temperatures": 3}']),
        ("table2.rbm", ["chains.sampler=dimod"]),
        ("table2.marginal", []),
        ("table1.rebar", []),
        ("table3.rbm", []),
    ],
)
def test_a_resumed_run_equals_an_unbroken_one(
    name: str, changes: list[str], images: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recipe = recipes.override(_resumable(name, images), changes)
    whole, halves = tmp_path / "whole", tmp_path / "halves"
    train(recipe, whole, say=_quiet)

    write = checkpoint.write

    def write_then_stop(*arguments: object) -> None:
        write(*arguments)
        raise InterruptedError("stopped after the first checkpoint, at half of the steps")

    with monkeypatch.context() as patch:
        patch.setattr(checkpoint, "write", write_then_stop)
        with pytest.raises(InterruptedError):
            train(recipe, halves, say=_quiet)
    train(recipe, halves, resume=True, say=_quiet)
    a, b = (checkpoint.read(run / "checkpoints") for run in (whole, halves))
    assert a.record == b.record and a.tensors.keys() == b.tensors.keys()
    for key, tensor in a.tensors.items():
        assert torch.equal(tensor, b.tensors[key]), key


def test_an_existing_run_is_not_overwritten(images: Path, tmp_path: Path) -> None:
    recipe = _recipe(images, steps=4)
    train(recipe, tmp_path / "run", say=_quiet)
    with pytest.raises(ValueError, match="already holds a run: continue it with --resume .in Python resume=True."):
        train(recipe, tmp_path / "run", say=_quiet)


def test_epochs_are_permutations_that_depend_on_seed_and_epoch_alone() -> None:
    epoch = torch.cat([batch_indices(50, 10, step, seed=3) for step in range(5)])
    assert torch.equal(epoch.sort().values, torch.arange(50))
    assert not torch.equal(batch_indices(50, 10, 5, seed=3), batch_indices(50, 10, 0, seed=3))
    assert torch.equal(batch_indices(50, 10, 7, seed=3), batch_indices(50, 10, 7, seed=3))


def test_schedules_follow_app_f() -> None:
    recipe = recipes.build("table2.rbm")
    rates = [learning_rate(recipe.optimizer, t) for t in (0.0, 0.019, 0.02, 0.59, 0.6, 0.75, 0.95, 1.0)]
    assert rates == pytest.approx([3e-4, 3e-4, 3e-3, 3e-3, 9e-4, 2.7e-4, 8.1e-5, 8.1e-5])
    assert [kl_weight(0.3, t) for t in (0.0, 0.15, 0.3, 1.0)] == [0, 0.5, 1, 1] and kl_weight(0.0, 0.0) == 1
    table1 = recipes.build("table1.joint").smoothing
    assert [table1.sharpness(t) for t in (0.0, 0.5, 1.0)] == [6, 11, 16]  # Sec. 7.1
