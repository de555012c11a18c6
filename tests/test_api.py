"""Models of one's own in the library's loop: trained, killed and resumed, loaded, evaluated, reported, refused."""

import json
import os
import signal
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import dvaepp
from dvaepp.cli import main
from dvaepp.errors import UsageError
from dvaepp.models.base import LogWeights, Model, Smoothings, Terms
from dvaepp.models.noise import BatchNoise
from dvaepp.priors import RBM, BoltzmannMachine, Directed
from dvaepp.priors.family import DirectedPrior, Network
from dvaepp.smoothing import Exponential
from dvaepp.training import checkpoint
from dvaepp.training.callbacks import tensorboard, wandb
from tests.training.toy import quiet

SMALL = {
    "training.validation_samples": 5,
    "training.batch_size": 20,
    "training.validate_every": 0.25,
    "chains.num_chains": 20,
    "chains.num_sweeps": 2,
}


class Second(nn.Module):
    def __init__(self, units: int = 4) -> None:
        super().__init__()
        self.linear = nn.Linear(36 + 4, units)

    def forward(self, x: Tensor, before: Tensor) -> Tensor:
        return self.linear(torch.cat([x.flatten(1), before], 1))


def _first(units: int = 4) -> nn.Module:
    return nn.Sequential(nn.Conv2d(1, 3, 3, 2, 1), nn.ELU(), nn.Flatten(), nn.LazyLinear(units))


def _own(**changes: Any) -> dvaepp.BinaryVAE:
    torch.manual_seed(0)
    parts = {"encoders": [_first(), Second()], "decoder": nn.Linear(8, 36), "prior": RBM(4, 4)}
    return dvaepp.BinaryVAE(**{**parts, **changes})


@pytest.fixture(scope="module")
def images() -> Tensor:
    """300 images of 6 x 6 pixels: the left or the right half."""
    g = torch.Generator().manual_seed(0)
    x = torch.zeros(300, 1, 6, 6)
    left = torch.rand(300, generator=g) < 0.5
    x[left, :, :, :3], x[~left, :, :, 3:] = 1, 1
    return (x.bool() ^ (torch.rand(x.shape, generator=g) < 0.05)).float()


def _train(model: Any, run_dir: Path, images: Any, steps: Any = 20, **options: Any) -> Path:
    settings = SMALL | options.pop("set", {})
    return dvaepp.train(
        model, run_dir, data=images, steps=steps, set=settings, **{"say": quiet, "pictures": False} | options
    )


@pytest.mark.slow
def test_own_networks_learn_and_are_evaluated_and_reported(images: Tensor, tmp_path: Path) -> None:
    seen: list[dict[str, Any]] = []
    run = _train(_own(), tmp_path / "run", images, 300, learning_rate=0.01, callbacks=[seen.append], pictures=True)
    assert [record["step"] for record in seen] == [75, 150, 225, 300]
    assert seen[-1]["validation_bound"] > seen[0]["validation_bound"] + 3
    written = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert [line["step"] for line in written if "validation_bound" in line] == [75, 150, 225, 300]
    assert {path.name for path in (run / "samples").iterdir()} == {"samples.png", "reconstructions.png"}
    result = dvaepp.evaluate(run, model=_own(), data=images, samples=50, limit=20)
    assert result == json.loads((run / "evaluation.json").read_text())
    assert -14 < result["log_likelihood"] < -7 and result["standard_error"] > 0 and result["num_images"] == 20
    assert result["log_partition"]["method"] == "exact"
    page = dvaepp.report(run, model=_own(), data=images).read_text()
    assert "each beside its reconstruction" in page and "sampled from the model" in page
    assert "could not be loaded" not in page and "q(z2)" in page
    trained = dvaepp.load(run, model=_own())
    assert trained.encode(images[:3]).shape == (3, 8) and trained.sample(2).shape == (2, 1, 6, 6)
    recipe = json.loads((run / "recipe.json").read_text())
    assert recipe["model"]["kind"] == "own" and recipe["model"]["tensors"]["encoders.0.3.weight"] == "4 x 27"


def test_a_killed_run_of_an_own_model_goes_on_bit_for_bit(images: Tensor, tmp_path: Path) -> None:
    whole = _train(_own(), tmp_path / "whole", images)

    def kill(record: dict[str, Any]) -> None:
        if record["step"] == 10:
            os.kill(os.getpid(), signal.SIGTERM)

    with pytest.raises(SystemExit) as ended:
        _train(_own(), tmp_path / "killed", images, callbacks=[kill])
    assert ended.value.code == 143
    killed = _train(_own(), tmp_path / "killed", images, resume=True)
    expected, found = (checkpoint.read(run / "checkpoints").tensors for run in (whole, killed))
    assert expected.keys() == found.keys() and all(torch.equal(found[name], expected[name]) for name in expected)


def test_another_architecture_or_other_data_is_refused_by_name_and_shape(images: Tensor, tmp_path: Path) -> None:
    run = _train(_own(), tmp_path / "run", images, 4)
    other = _own(encoders=[_first(5), Second(3)], prior=RBM(4, 4))
    other.encoders[1].linear = nn.Linear(36 + 5, 3)
    with pytest.raises(UsageError, match=r"encoders.0.3.weight is \(4, 27\) there and \(5, 27\) here"):
        dvaepp.load(run, model=other)
    with pytest.raises(UsageError, match="another recipe"):
        _train(other, run, images, 4, resume=True)
    with pytest.raises(UsageError, match="give it the data of its training"):
        dvaepp.evaluate(run, model=_own(), data=1 - images)
    with pytest.raises(UsageError, match="was given in Python"):
        dvaepp.evaluate(run, model=_own())


@pytest.mark.parametrize(
    "command",
    [
        ["evaluate", "RUN"],
        ["sample", "RUN"],
        ["reconstruct", "RUN"],
        ["encode", "RUN"],
        ["report", "RUN"],
        ["train", "--resume", "--run-dir", "RUN"],
    ],
)
def test_commands_say_how_to_go_on_in_python(
    command: list[str], images: Tensor, tmp_path_factory: pytest.TempPathFactory, capsys: pytest.CaptureFixture[str]
) -> None:
    run = tmp_path_factory.getbasetemp() / "of-commands"
    if not run.exists():
        _train(_own(), run, images, 2)
    with pytest.raises(SystemExit) as ended:
        main([str(run) if part == "RUN" else part for part in command])
    error = capsys.readouterr().err.strip()
    assert ended.value.code == 2 and error.count("\n") == 0 and "dvaepp.load(run, model=build())" in error


BAD: dict[str, tuple[dict[str, Any], str]] = {
    "an encoder of the wrong width": (
        {"encoders": [nn.Sequential(nn.Flatten(), nn.Linear(35, 8))]},
        r"encoders\[0\] does not take x of shape \(2, 1, 6, 6\).*2x36 and 35x8",
    ),
    "an encoder that is no map to units": (
        {"encoders": [nn.Conv2d(1, 8, 6)]},
        r"encoders\[0\] gives shape \(2, 8, 1, 1\).*expected \(rows, units\)",
    ),
    "a decoder of the wrong width": (
        {"decoder": nn.Linear(9, 36)},
        r"decoder does not take zeta of shape \(2, 8\).*9x36",
    ),
    "a decoder that does not fit the likelihood": (
        {"decoder": nn.Linear(8, 35)},
        r"decoder gives \(35,\) for images \(1, 6, 6\).*36 pixels",
    ),
    "a decoder without spreads": (
        {"likelihood": "gaussian"},
        r"decoder gives \(36,\) for x of shape \(1, 6, 6\).*72 numbers",
    ),
    "a prior of the wrong size": (
        {"prior": RBM(4, 5)},
        r"encoders give 4 \+ 4 = 8 units, and the prior RBM\(4, 5\) has 9",
    ),
    "a directed prior of other groups": (
        {"prior": Directed([5, 3], [nn.Linear(5, 3)])},
        r"groups of \[4, 4\] units, and the prior has groups of \[5, 3\]",
    ),
    "a likelihood of that name": ({"likelihood": "bernouli"}, "likelihood is 'bernouli'; expected bernoulli"),
    "a likelihood that sums over rows": (
        {"likelihood": lambda parameters, x: parameters.sum()},
        r"likelihood gives \(\) for 2 rows; expected \(2,\)",
    ),
}


@pytest.mark.parametrize("case", BAD)
def test_what_does_not_fit_is_refused_before_the_first_step(case: str, images: Tensor, tmp_path: Path) -> None:
    changes, message = BAD[case]
    with pytest.raises(UsageError, match=message) as refused:
        _train(_own(**changes), tmp_path / "run", images)
    assert "\n" not in str(refused.value) and not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"encoders": _first()}, r"encoders is one Sequential; .*encoders=\[...\]"),
        ({"encoders": torch.zeros(3)}, "encoders is a Tensor; expected a list"),
        ({"encoders": []}, "encoders is empty"),
        ({"encoders": [torch.zeros(3)]}, r"encoders\[0\] is a Tensor; expected a torch.nn.Module"),
        ({"decoder": torch.sigmoid}, "decoder is a builtin_function_or_method"),
        ({"prior": nn.Linear(2, 2)}, "prior is a Linear; expected a prior"),
    ],
)
def test_parts_of_the_wrong_kind_are_refused_when_the_model_is_made(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        _own(**changes)


def test_data_of_the_wrong_range_or_shape_is_refused(images: Tensor, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="values from 0 to 255; .* divide by 255"):
        _train(_own(), tmp_path / "run", 255 * images)
    model = _own()
    model.prepare((1, 6, 6), (1, 6, 6))
    with pytest.raises(UsageError, match=r"takes x of shape \(1, 6, 6\), and the data has \(1, 5, 6\)"):
        _train(model, tmp_path / "run", images[:, :, :5])
    with pytest.raises(UsageError, match="needs data: give data="):
        dvaepp.train(_own(), tmp_path / "run")
    with pytest.raises(UsageError, match="model is a Linear; expected a recipe or its name, or a model"):
        dvaepp.train(nn.Linear(2, 2), tmp_path / "run", data=images)


def test_arrays_rows_folders_and_recipes_are_trained_alike(images: Tensor, tmp_path: Path) -> None:
    rows = nn.Sequential(nn.Linear(36, 8))
    flat = _own(encoders=[rows])
    run = _train(flat, tmp_path / "rows", images.flatten(1).numpy(), 2, pictures=True)
    assert dvaepp.load(run, model=flat).decode(torch.zeros(2, 8)).shape[0] == 2
    np.save(tmp_path / "images.npy", images[:, 0].numpy().astype(np.uint8), allow_pickle=False)
    small = {"model.groups": [4], "training.validation_images": 10}
    for data, name in ((images, "tensor"), (str(tmp_path / "images.npy"), "path")):
        run = _train("table2.rbm", tmp_path / name, data, 2, set=small, pictures=True)
        assert dvaepp.load(run).encode(images[:2]).shape == (2, 4)
    assert dvaepp.evaluate(run, samples=5, limit=5)["num_images"] == 5  # a path is read again
    with pytest.raises(UsageError, match="was given in Python"):
        dvaepp.evaluate(tmp_path / "tensor", samples=5)


def test_rows_are_trained_with_several_importance_samples(images: Tensor, tmp_path: Path) -> None:
    model = _own(encoders=[nn.Linear(36, 8)])
    settings = {"training.importance_samples": 3, "training.objective": "relaxed"}
    _train(model, tmp_path / "run", images.flatten(1), 2, set=settings)


def test_batches_of_one_image_are_trained_without_a_warning(images: Tensor, tmp_path: Path) -> None:
    run = _train(_own(), tmp_path / "run", images, 2, set={"training.batch_size": 1})
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert [line["active_units"] for line in lines if "bound" in line] == [[0, 0], [0, 0]]


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_training_turns_gradients_on_for_itself(mode: Any, images: Tensor, tmp_path: Path) -> None:
    model = _own()
    model.prepare((1, 6, 6), (1, 6, 6))
    before = model.decoder.weight.detach().clone()
    with mode():
        _train(model, tmp_path / "run", images, 2, pictures=True)
        assert not torch.is_grad_enabled()
    assert not torch.equal(model.decoder.weight, before)


@pytest.mark.parametrize("pictures", [False, True])
def test_a_trained_model_holds_the_weights_of_its_best_validation(
    pictures: bool, images: Tensor, tmp_path: Path
) -> None:
    model, scores = _own(), [1.0, 5.0, 2.0, 3.0]

    def judge(record: dict[str, Any]) -> None:
        record["validation_log_likelihood"] = scores[record["step"] - 1]

    run = _train(model, tmp_path / "run", images, 4, callbacks=[judge], pictures=pictures)
    best = checkpoint.read(run / "checkpoints", "best")
    assert best.record["step"] == 2 and not model.training
    for name, value in checkpoint.under("model", best.tensors).items():
        assert torch.equal(model.state_dict()[name], value)


def test_a_model_in_float64_is_trained_in_float64(images: Tensor, tmp_path: Path) -> None:
    run = _train(_own().double(), tmp_path / "run", images, 2)
    assert json.loads((run / "recipe.json").read_text())["training"]["precision"] == "float64"
    assert dvaepp.load(run, model=_own()).dtype == torch.float64


def test_numbers_of_numpy_and_torch_and_devices_and_paths_are_taken(
    images: Tensor, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    settings = {"chains.num_sweeps": torch.tensor(1), "optimizer.learning_rate": np.float32(0.01)}
    options = {"seed": np.int64(7), "device": torch.device("cpu"), "set": settings, "beta": np.float32(5)}
    run = _train(_own(), Path("~/run"), images, np.int64(2), **options)
    assert run == tmp_path / "run"
    recipe = json.loads((run / "recipe.json").read_text())
    assert recipe["training"]["seed"] == 7 and recipe["chains"]["num_sweeps"] == 1
    options = {"samples": np.int64(3), "limit": np.int64(4), "device": torch.device("cpu")}
    result = dvaepp.evaluate("~/run", model=_own(), data=images, **options)
    assert json.loads((run / "evaluation.json").read_text()) == result
    assert (result["num_samples"], result["num_images"]) == (3, 4)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"beta": (1, 2, 3)}, r"beta is \(1, 2, 3\); expected a number or a pair \(start, end\)"),
        ({"set": {"smoothing.beta": Exponential(8.0)}}, "smoothing.beta is a Exponential; expected"),
    ],
)
def test_settings_of_the_wrong_kind_are_refused(
    options: dict[str, Any], message: str, images: Tensor, tmp_path: Path
) -> None:
    with pytest.raises(UsageError, match=message):
        _train(_own(), tmp_path / "run", images, 2, **options)


def test_patience_ends_a_run_that_gets_no_better(images: Tensor, tmp_path: Path) -> None:
    said: list[str] = []
    settings = {"training.validate_every": 0.05, "training.kl_warmup": 0.0}
    options = {"learning_rate": 1e-12, "patience": 2, "set": settings, "say": said.append}
    _train(_own(), tmp_path / "run", images, 40, **options)
    assert any("validations without a better one (training.patience)" in line for line in said)
    step = checkpoint.read(tmp_path / "run" / "checkpoints").record["step"]
    assert 4 <= step < 40
    said.clear()
    _train(
        _own(),
        tmp_path / "run",
        images,
        40,
        learning_rate=1e-12,
        patience=2,
        set=settings,
        say=said.append,
        resume=True,
    )
    assert checkpoint.read(tmp_path / "run" / "checkpoints").record["step"] == step


def test_callbacks_for_other_tools(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write = tensorboard(tmp_path / "tb")
    write({"step": 3, "validation_bound": -2.0, "validation_kl_per_group": [1.0, 2.0]})
    assert list((tmp_path / "tb").iterdir())
    monkeypatch.setitem(__import__("sys").modules, "wandb", None)
    with pytest.raises(UsageError, match=r"pip install 'dvaepp\[wandb\]'"):
        wandb("project")


class Mixture(Model):
    """A toy model in one file: one bit that chooses between two learned images."""

    def __init__(self) -> None:
        super().__init__()
        self.image_shape, self.group_sizes = (1, 6, 6), [1]
        self.encoder, self.images = nn.Linear(36, 1), nn.Parameter(0.1 * torch.randn(2, 36))

    def _log_p(self, x: Tensor, zeta: Tensor) -> Tensor:
        logits = self.images[0] + zeta * (self.images[1] - self.images[0])
        return -nn.functional.binary_cross_entropy_with_logits(logits, x.flatten(1), reduction="none").sum(1)

    def terms(
        self,
        x: Tensor,
        smoothing: Smoothings,
        noise: BatchNoise,
        *,
        objective: str,
        log_z: Any = 0.0,
        weights: bool = False,
    ) -> Terms:
        logits = self.encoder(x.flatten(1))
        zeta = smoothing.sample(logits, noise.uniform(len(x), 1))  # type: ignore[union-attr]
        q = torch.sigmoid(logits)
        kl = (q * torch.log(2 * q + 1e-9) + (1 - q) * torch.log(2 - 2 * q + 1e-9)).sum(1)
        return Terms(self._log_p(x, zeta), kl[None], [logits])

    def log_weights(self, x: Tensor, smoothing: Any = None, generator: torch.Generator | None = None) -> LogWeights:
        q = torch.sigmoid(self.encoder(x.flatten(1)))

        def draw(k: int) -> Tensor:
            z = (torch.rand(k, len(x), 1, generator=generator) < q).float()
            log_q = torch.log(torch.where(z == 1, q, 1 - q)).sum(-1)
            return torch.stack([self._log_p(x, bits) for bits in z]) - np.log(2) - log_q

        return draw

    def encode(self, x: Tensor) -> Tensor:
        return (self.encoder(x.flatten(1)) > 0).float()

    def decode(self, code: Tensor, generator: torch.Generator | None = None, mean: bool = True) -> Tensor:
        return torch.sigmoid(self.images[code[:, 0].long()]).reshape(-1, 1, 6, 6)

    def sample_code(self, n: int, generator: torch.Generator | None = None) -> Tensor:
        return (torch.rand(n, 1, generator=generator) < 0.5).float()


def test_a_toy_model_of_one_class_gets_all_of_the_library(images: Tensor, tmp_path: Path) -> None:
    torch.manual_seed(0)
    run = _train(Mixture(), tmp_path / "run", images, 300, learning_rate=0.05, pictures=True)
    result = dvaepp.evaluate(run, model=Mixture(), data=images, samples=20)
    assert result["log_likelihood"] > -12 and result["log_partition"] is None
    assert "own parameters" in dvaepp.report(run, model=Mixture(), data=images).read_text()
    left, right = dvaepp.load(run, model=Mixture()).encode(images)[:, 0].bool(), images[:, 0, 3, 4] > 0.5
    assert (left == right).float().mean() > 0.9 or (left != right).float().mean() > 0.9


class Shared(DirectedPrior):
    """A toy prior in one file: all units have the same probability."""

    def __init__(self, group_sizes: Sequence[int]) -> None:
        super().__init__(group_sizes)
        self.logit = nn.Parameter(torch.zeros(1))

    @classmethod
    def for_groups(cls, group_sizes: Sequence[int], network: Network) -> "Shared":
        return cls(group_sizes)

    def next_logits(self, before: Sequence[Tensor]) -> Tensor:
        return self.logit.expand(self.group_sizes[len(before)])


@pytest.mark.parametrize("prior", [lambda: Shared([4, 4]), lambda: BoltzmannMachine(8)])
def test_any_prior_is_trained_sampled_and_evaluated(prior: Any, images: Tensor, tmp_path: Path) -> None:
    model = _own(prior=prior())
    before = [p.detach().clone() for p in model.prior.parameters()]
    run = _train(model, tmp_path / "run", images, 40, learning_rate=0.01)
    assert any(not torch.equal(a, b) for a, b in zip(before, model.prior.parameters(), strict=True))
    result = dvaepp.evaluate(run, model=_own(prior=prior()), data=images, samples=10, limit=10)
    assert (result["log_partition"] is None) == (model.boltzmann is None)
    assert "could not be loaded" not in dvaepp.report(run, model=_own(prior=prior()), data=images).read_text()
