"""DVAE++ as a whole: the maps of Table 4, its two sources of latents, its runs, and what it refuses."""

import json
import math
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import dvaepp
from dvaepp import recipes, runs
from dvaepp.data import Dataset
from dvaepp.distributed import Shard
from dvaepp.errors import UsageError
from dvaepp.models.architecture import Architecture
from dvaepp.models.build import build_model
from dvaepp.models.dvaepp import DVAE
from dvaepp.models.noise import BatchNoise
from dvaepp.models.sources import PosteriorSource, PriorSource
from dvaepp.smoothing import Exponential
from dvaepp.training import checkpoint, train

TINY = Architecture(("4d",), ("4d",), ("4u",), ("4",), (), ("4",), (("4u",),), 4, 4)


def _generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def _noise(seed: int = 0) -> BatchNoise:
    return BatchNoise(_generator(seed), torch.device("cpu"))


def _tiny(**options: object) -> DVAE:
    """4x4 images, latents on 2x2; parameters away from their quiet start."""
    settings = dict(global_units=4, global_groups=2, local_channels=2, local_groups=3) | options
    model = DVAE((1, 4, 4), TINY, generator=_generator(), **settings)
    g = _generator(1)
    for parameter in model.parameters():
        parameter.data.add_(0.3 * torch.randn(parameter.shape, generator=g))
    return model.eval()


def _images(rows: int = 5) -> Tensor:
    return (torch.rand(rows, 1, 4, 4, generator=_generator(2)) < 0.5).float()


# Table 4: (channels, size) of each map, as the text of App. G gives them for CIFAR10.

MAPS = {
    "omniglot": {
        "down1": [(128, 4)], "down2": [(512, 1)], "upsample": [(128, 4)], "q": [(64, 4)] * 2, "p": [(64, 4)] * 2,
        "context": [(16, 4)], "upsamples": [(16, 8), (8, 16), (8, 32)],
        "heads": [(1, 4), (1, 8), (1, 16), (1, 32)], "inputs": [(32, 4), (32, 8), (32, 16)],
    },
    "caltech": {
        "down1": [(8, 8)], "down2": [(16, 1)], "upsample": [(32, 8)], "q": [(64, 8)] * 2, "p": [(64, 8)] * 2,
        "context": [(16, 8)], "upsamples": [(8, 8), (4, 16), (4, 32)],
        "heads": [(1, 4), (1, 8), (1, 16), (1, 32)], "inputs": [(32, 8), (32, 8), (32, 16)],
    },
    "cifar10": {
        "down1": [(256, 8)], "down2": [(1024, 1)], "upsample": [(32, 8)], "q": [(64, 8)] * 2, "p": [(64, 8)] * 2,
        "context": [(256, 8)], "upsamples": [(128, 8), (64, 16), (32, 32)],
        "heads": [(100, 4), (100, 8), (100, 16), (100, 32)], "inputs": [(32, 8), (32, 8), (32, 16)],
    },
}  # fmt: skip


def _without_numbers(dataset: str, *arguments: str) -> DVAE:
    """A model of the paper's size on torch's meta device: shapes alone."""
    recipe = recipes.build("table3.rbm", [f"dataset={dataset}", *arguments])
    with torch.device("meta"):
        model = build_model(recipe.model, torch.zeros((3, 32, 32) if dataset == "cifar10" else (1, 28, 28)))
    assert isinstance(model, DVAE)
    return model


@pytest.mark.parametrize("dataset", MAPS)
def test_the_maps_have_the_sizes_of_table_4(dataset: str) -> None:
    model = _without_numbers(dataset)
    found: dict[str, list[tuple[int, int]]] = {name: [] for name in MAPS[dataset]}

    def watch(name: str, module: nn.Module) -> None:
        def note(_: nn.Module, inputs: object, output: Tensor) -> None:
            assert output.shape[2] == output.shape[3]
            found[name].append((output.shape[1], output.shape[2]))

        module.register_forward_hook(note)

    d = model.decoder
    for name, module in (("down1", model.down1), ("down2", model.down2), ("upsample", model.upsample)):
        watch(name, module)
    watch("context", d.context)
    for name, modules in (("upsamples", d.upsamples), ("heads", d.heads), ("inputs", d.inputs)):
        for module in modules:
            watch(name, module)
    for name, networks in (("q", model.q), ("p", model.p)):
        for module in networks.networks:
            watch(name, module)
    x = torch.zeros(2, *model.image_shape, device="meta")
    features = model.norm1(model.down1(model.input_norm(model.canvas.pad(x))))
    assert model.norm2(model.down2(features)).flatten(1).shape[1] == MAPS[dataset]["down2"][0][0]
    up = model.upsample(torch.zeros(2, model.num_units, 1, 1, device="meta"))
    size = up.shape[-1]
    h = [torch.zeros(2, 32, size, size, device="meta") for _ in range(16)]
    assert len(model.q.networks) == len(model.p.networks) == 16
    for j in (0, 15):  # the first and the last group
        model.q.walk(torch.cat([features, up], 1))(h[:j])
        model.p.walk(up)(h[:j])
    assert d(torch.cat([up, *h], 1), model.canvas.pad(x)).shape == (2,)
    assert found == MAPS[dataset]


@pytest.mark.parametrize("dataset, units, top", [("omniglot", 4, 512), ("caltech", 4, 16), ("cifar10", 32, 1024)])
def test_global_networks_are_one_layer_each_and_see_the_groups_before(dataset: str, units: int, top: int) -> None:
    """Units per group are total / 4: the 4 of Table 4; for CIFAR10 128 / 4."""
    shapes = [[tuple(p.shape) for p in net.parameters()] for net in _without_numbers(dataset).encoders]
    assert shapes == [[(units, top + i * units), (units,)] for i in range(4)]


def _count(inputs: int, outputs: int, skip: bool) -> int:
    squeezed = outputs // 4
    convolutions = 9 * inputs * outputs + outputs + 9 * outputs * outputs + outputs
    excitation = outputs * squeezed + squeezed + squeezed * outputs + outputs
    return convolutions + excitation + (inputs * outputs + outputs if skip else 0)


def _numel(module: nn.Module) -> int:
    return sum(p.numel() for p in module.parameters())


def test_numbers_of_parameters_counted_by_hand() -> None:
    """OMNIGLOT's down 1 and q of the third group; CIFAR10's context; the two batch norms' scales and shifts."""
    omniglot, cifar10 = _without_numbers("omniglot"), _without_numbers("cifar10")
    down1 = _count(1, 32, True) + _count(32, 32, False) + _count(32, 64, True) + _count(64, 64, False)
    assert _numel(omniglot.down1) == down1 + _count(64, 128, True)
    # the first skip of a group's network projects always; its inputs: 128 features, 128 of ζ, 2 x 32 of h
    third = _count(128 + 128 + 64, 32, True) + 3 * _count(32, 32, False) + _count(32, 64, True)
    assert _numel(omniglot.q.networks[2]) == third
    assert _numel(cifar10.decoder.context) == _count(32 + 16 * 32, 256, True)
    assert [_numel(n) for n in (omniglot.input_norm, omniglot.norm1, omniglot.norm2)] == [2, 2 * 128, 2 * 512]
    norms = [m for m in omniglot.modules() if isinstance(m, nn.modules.batchnorm._BatchNorm)]
    assert len(norms) == 3, "no batch norm but at the input, after down 1 and after down 2 (App. G)"


def test_an_unconditional_decoder_has_one_head_and_no_input_nets() -> None:
    decoder = _without_numbers("mnist_static").decoder
    assert len(decoder.heads) == 1 and len(decoder.inputs) == 0 and len(decoder.upsamples) == 3


def _bounded(outputs: Tensor) -> Tensor:
    """Means and log deviations of normal units."""
    return 5 * torch.tanh(outputs / 5)


@pytest.mark.parametrize("global_kind", ["rbm", "bernoulli", "normal", "none"])
@pytest.mark.parametrize("local_kind", ["bernoulli", "normal"])
def test_the_posterior_pass_equals_the_networks_one_by_one(global_kind: str, local_kind: str) -> None:
    """Parameters of q and p along a drawn pass, against each network on its concatenation, in float64.

    Gradients of both with respect to every parameter too, ζ and h being drawn from q.
    """
    model = _tiny(global_kind=global_kind, local_kind=local_kind).double()
    x = _images().double()
    q = PosteriorSource(model, model.features(x), _noise(), Exponential(8.0))
    drawn = model.top_down(q, len(x))
    zeta, h = [g.value for g in drawn.zeta], [g.value for g in drawn.h]
    features = model.norm1(model.down1(model.input_norm(x)))
    found, expected = [drawn.features, *q.local_parameters, *model.local_priors(drawn)], []
    if global_kind == "none":
        up = model.constant.expand(5, -1, -1, -1)
        assert zeta == []
    else:
        top = model.norm2(model.down2(features)).flatten(1)
        layers = [model.encoders[i].layers[0] for i in range(2)]
        outputs = [torch.cat([top, *zeta[:i]], 1) @ a.weight.T + a.bias for i, a in enumerate(layers)]
        expected += [_bounded(each) if global_kind == "normal" else each for each in outputs]
        found = [*q.global_parameters, *found]
        up = model.upsample(torch.cat(zeta, 1)[:, :, None, None])
    expected.append(torch.cat([up, *h], 1))
    outputs = [model.q.networks[j](torch.cat([features, up, *h[:j]], 1)) for j in range(3)]
    outputs += [model.p.networks[j](torch.cat([up, *h[:j]], 1)) for j in range(3)]
    expected += [_bounded(each) if local_kind == "normal" else each for each in outputs]
    parameters = list(model.parameters())
    for a, b in zip(found, expected, strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=1e-10)
        direction = torch.randn(b.shape, generator=_generator(5), dtype=torch.float64)
        gradients = [
            torch.autograd.grad((v * direction).sum(), parameters, retain_graph=True, materialize_grads=True)
            for v in (a, b)
        ]
        largest = max(g.abs().max().item() for g in gradients[1])
        for mine, theirs in zip(*gradients, strict=True):
            torch.testing.assert_close(mine, theirs, rtol=0, atol=1e-11 * largest)


def test_prior_pass_draws_h_from_p_given_zeta() -> None:
    """Each unit's frequency over 20 000 passes, first group: σ of p's logits within 5 standard errors."""
    model = _tiny(local_kind="bernoulli")
    zeta = torch.tensor([[1.0, 0.0, 1.0, 1.0]]).expand(20_000, -1)
    with torch.no_grad():
        drawn = model.top_down(PriorSource(model, list(zeta.split(2, 1)), _noise()), 20_000)
        p = torch.sigmoid(model.p.walk(drawn.up[:1])([])[0])
    error = (p * (1 - p) / 20_000).sqrt()
    assert ((drawn.h[0].value.mean(0) - p).abs() < 5 * error).all()
    assert torch.equal(torch.cat([g.value for g in drawn.zeta], 1), zeta)


def test_noise_of_a_shard_is_the_rows_of_the_whole_batch() -> None:
    """Two halves of a batch, each with the whole batch's noise, give the whole batch's latents."""
    model, x = _tiny(local_kind="bernoulli"), _images(6)

    def latents(images: Tensor, shard: Shard | None) -> Tensor:
        noise = BatchNoise(_generator(3), torch.device("cpu"), shard)
        with torch.no_grad():
            return model.top_down(
                PosteriorSource(model, model.features(images), noise, Exponential(8.0)), len(images)
            ).features

    halves = torch.cat([latents(x[:2], Shard(0, 2, 6)), latents(x[2:], Shard(2, 6, 6))])
    torch.testing.assert_close(halves, latents(x, None), rtol=0, atol=1e-4)


# What is refused when the model meets its data.


def test_wrong_channels_and_too_large_images_are_refused() -> None:
    with pytest.raises(UsageError, match="a bernoulli likelihood takes images of 1 channels, got 3"):
        DVAE((3, 4, 4), TINY)
    with pytest.raises(UsageError, match="a logistic_mixture likelihood takes images of 1 or 3 channels, got 2"):
        DVAE((2, 4, 4), TINY, likelihood="logistic_mixture")
    with pytest.raises(UsageError, match=r"images of 4 x 5 do not fit this architecture: it takes up to 4 x 4"):
        DVAE((1, 4, 5), TINY)
    assert DVAE((1, 3, 2), TINY, generator=_generator()).canvas.owner().shape == (3, 2)


def _dataset(likelihood: str, shape: tuple[int, int, int]) -> Dataset:
    images = torch.zeros(4, *shape, dtype=torch.uint8)
    return Dataset("toy", shape, likelihood, images, images, images, False)


@pytest.mark.parametrize(
    "dataset, likelihood, shape, message",
    [
        ("omniglot", "logistic_mixture", (3, 32, 32), "toy has images of 256 levels; this model takes binary images"),
        ("cifar10", "bernoulli", (1, 28, 28), "toy has binary images; this model takes images of 256 levels"),
        ("omniglot", "bernoulli", (1, 40, 40), "images of 40 x 40 do not fit this architecture"),
    ],
)
def test_training_refuses_data_of_another_kind_before_it_writes_anything(
    dataset: str,
    likelihood: str,
    shape: tuple[int, int, int],
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("dvaepp.recipes.schema.DataConfig.load", lambda *_: _dataset(likelihood, shape))
    recipe = recipes.build("table3.rbm", [f"dataset={dataset}", "size=small"])
    with pytest.raises(UsageError, match=message):
        train(recipe, tmp_path / "run", say=lambda line: None)
    assert not (tmp_path / "run").exists()


# A run of one's own images, from training to bits.

CHANGES = {
    "model.image_size": 4,
    "model.down1": '["8d"]',
    "model.down2": '["8d"]',
    "model.upsample": '["8u"]',
    "model.posterior": '["8"]',
    "model.prior": "[]",
    "model.context": '["8"]',
    "model.upsamples": '[["8u"]]',
    "model.input_filters": 4,
    "model.local_channels": 2,
    "model.local_groups": 2,
    "model.global_units": 4,
    "model.global_groups": 2,
    "training.steps": 60,
    "training.batch_size": 50,
    "training.validate_every": 0.5,
    "training.validation_samples": 4,
    "chains.num_chains": 20,
    "chains.num_sweeps": 5,
    "optimizer.learning_rate": 0.02,
}


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """400 images of 4x4: a half is set, with a little noise."""
    rng = np.random.default_rng(0)
    halves = np.zeros((4, 4, 4), dtype=np.uint8)
    halves[0, :, :2] = halves[1, :, 2:] = halves[2, :2] = halves[3, 2:] = 1
    path = tmp_path_factory.mktemp("data") / "halves.npy"
    np.save(path, halves[rng.integers(0, 4, 400)] ^ (rng.random((400, 4, 4)) < 0.03), allow_pickle=False)
    return path


def _recipe(images: Path, name: str = "table3.rbm", **changes: object) -> recipes.Recipe:
    settings = {**CHANGES, "data.path": images, **{k.replace("__", "."): v for k, v in changes.items()}}
    return recipes.build(name, ["dataset=omniglot"], [f"{k}={v}" for k, v in settings.items()])


@pytest.fixture(scope="module")
def run(images: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return train(_recipe(images), tmp_path_factory.mktemp("runs") / "run", say=lambda line: None)


def test_a_short_run_learns_and_is_evaluated(run: Path) -> None:
    """The bound passes 16 fair coins; the estimate in the binary limit and at the training β are both above -11."""
    records = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    last = [r for r in records if "validation_bound" in r][-1]
    assert last["validation_bound"] > -16 * math.log(2)
    assert len(last["validation_kl_per_group"]) == 3, "the RBM is one group, then two local ones"
    for beta in ("inf", "training"):
        result = runs.evaluate(run, samples=20, beta=beta)
        assert -16 * math.log(2) < result["log_likelihood"] < 0
        assert result["bits_per_dim"] == pytest.approx(-result["log_likelihood"] / (16 * math.log(2)))
        assert result["beta"] == ("inf" if beta == "inf" else 8.0)


def test_a_resumed_run_equals_an_unbroken_one(
    run: Path, images: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Batch-norm statistics, AdaMax, chains, plateau and generator come back bit by bit."""
    write = checkpoint.write

    def write_then_stop(*arguments: object) -> None:
        write(*arguments)
        raise InterruptedError

    with monkeypatch.context() as patch:
        patch.setattr(checkpoint, "write", write_then_stop)
        with pytest.raises(InterruptedError):
            train(_recipe(images), tmp_path / "halves", say=lambda line: None)
    train(_recipe(images), tmp_path / "halves", resume=True, say=lambda line: None)
    a, b = (checkpoint.read(r / "checkpoints") for r in (run, tmp_path / "halves"))
    assert a.record == b.record and a.tensors.keys() == b.tensors.keys()
    for key, tensor in a.tensors.items():
        assert torch.equal(tensor, b.tensors[key]), key


def test_encode_gives_the_most_likely_bit_of_each_unit_in_turn(run: Path) -> None:
    trained = dvaepp.load(run)
    x = _images(7)
    bits = trained.encode(x)
    assert bits.shape == (7, 4) and set(bits.unique().tolist()) <= {0.0, 1.0}
    model = trained.model
    with torch.no_grad():
        top = model.norm2(model.down2(model.norm1(model.down1(model.input_norm(x))))).flatten(1)
        first = (model.encoders[0](top) > 0).float()
        second = (model.encoders[1](torch.cat([top, first], 1)) > 0).float()
    assert torch.equal(bits, torch.cat([first, second], 1))


def test_decode_sample_and_reconstruct_give_images_in_range(run: Path) -> None:
    trained = dvaepp.load(run)
    bits = (torch.rand(7, 4, generator=_generator()) < 0.5).float()
    x = _images(7)
    for images in (
        trained.decode(bits, _generator()),
        trained.reconstruct(x, _generator()),
        trained.sample(7, _generator()),
        trained.sample(1, _generator(), per_code=7),
    ):
        assert images.shape == (7, 1, 4, 4) and 0 <= images.min() and images.max() <= 1
    assert torch.equal(trained.decode(bits, _generator(1)), trained.decode(bits, _generator(1)))
    assert trained.log_likelihood(x, 5, _generator()).shape == (7,)
    with pytest.raises(ValueError, match=r"bits must have shape \(batch, 4\)"):
        trained.decode(torch.zeros(2, 5))
    with pytest.raises(ValueError, match=r"x must be \(batch, 1, 4, 4\)"):
        trained.reconstruct(torch.zeros(2, 1, 5, 5))


def test_images_of_one_code_share_it_and_differ_in_their_local_units(images: Path) -> None:
    """A factorial decoder that is made blind to h shows ζ alone: five equal images per code, then five others."""
    recipe = _recipe(images, model__conditional="false")
    model = _tiny(conditional=False, global_units=16)
    trained = runs.Trained(model, recipe, {})
    seeing = trained.sample(6, _generator(), per_code=5).reshape(6, 5, 16)
    assert all(len(five.unique(dim=0)) == 5 for five in seeing)
    block = model.decoder.context[0]
    with torch.no_grad():
        for conv in (block.first, block.skip):
            conv.weight[:, 4:] = 0  # 4 channels of ζ scaled up come first
    blind = trained.sample(6, _generator(), per_code=5).reshape(6, 5, 16)
    torch.testing.assert_close(blind, blind[:, :1].expand(-1, 5, -1), rtol=0, atol=1e-5)
    assert len((blind[:, 0] * 1e3).round().unique(dim=0)) >= 3


def test_drawn_images_are_binary_and_average_to_the_mean_ones(images: Path) -> None:
    """20 000 images of one code with local units that do not matter: within 5 standard errors of the means."""
    model = _tiny(conditional=False, global_units=16)
    with torch.no_grad():
        for conv in (model.decoder.context[0].first, model.decoder.context[0].skip):
            conv.weight[:, 4:] = 0  # 4 channels of ζ scaled up come first
    trained = runs.Trained(model, _recipe(images, model__conditional="false"), {})
    bits = torch.ones(20_000, 16)
    drawn = trained.decode(bits, _generator(), mean=False)
    assert set(drawn.unique().tolist()) == {0.0, 1.0}
    p = trained.decode(bits[:1], _generator())[0]
    assert ((drawn.mean(0) - p).abs() < 5 * (p * (1 - p) / 20_000).sqrt()).all()
    assert set(trained.sample(5, _generator(), mean=False).unique().tolist()) <= {0.0, 1.0}
    assert set(trained.reconstruct(_images(), _generator(), mean=False).unique().tolist()) <= {0.0, 1.0}


@pytest.mark.parametrize("name, kind", [("table3.continuous", "normal"), ("ablations.no_global", "none")])
def test_models_without_binary_global_units_refuse_bits_and_still_sample(name: str, kind: str, images: Path) -> None:
    trained = runs.Trained(_tiny(global_kind=kind), _recipe(images, name), {})
    for use in (lambda: trained.encode(_images()), lambda: trained.decode(torch.zeros(2, 4))):
        with pytest.raises(UsageError, match=r"no binary global units"):
            use()
    assert trained.sample(3, _generator()).shape == (3, 1, 4, 4)
    assert trained.reconstruct(_images(), _generator()).shape == (5, 1, 4, 4)
    assert torch.isfinite(trained.log_likelihood(_images(), 4, _generator())).all()


def test_factorial_global_units_are_sampled_with_their_learned_probabilities(images: Path) -> None:
    """20 000 codes: each unit's frequency within 5 standard errors of σ(logit)."""
    model = _tiny(global_kind="bernoulli")
    code = runs.Trained(model, _recipe(images, "table3.bernoulli"), {}).sample_code(20_000, _generator())
    p = torch.sigmoid(model.prior_parameters.detach())
    assert set(code.unique().tolist()) == {0.0, 1.0}
    assert ((code.mean(0) - p).abs() < 5 * (p * (1 - p) / 20_000).sqrt()).all()


@pytest.mark.parametrize("row", ["continuous", "rbm", "rbm_bernoulli"])
def test_every_group_starts_near_its_prior(row: str) -> None:
    """Normal global groups whose spread grew from each to the next put the KL of local groups above 1e7 nats."""
    section = recipes.build(f"table3.{row}", ["dataset=caltech", "size=small"]).model
    model = build_model(section, torch.full((1, 28, 28), 0.45), _generator())
    x = (torch.rand(50, 1, 28, 28, generator=_generator(1)) < 0.45).float()
    objective = "boltzmann" if model.boltzmann is not None else "marginal"
    kl = model.terms(x, Exponential(8.0), _noise(), objective=objective).kl.mean(1)
    assert kl.max() < 200 and kl.sum() < 2000, kl.tolist()
