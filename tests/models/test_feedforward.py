"""The feed-forward model's faster forms against the plain ones."""

from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
from torch import Tensor
from torch.autograd import gradcheck, gradgradcheck
from torch.nn.functional import binary_cross_entropy_with_logits, linear

from dvaepp.models.binary_vae import BinaryVAE
from dvaepp.models.feedforward import FeedForward
from dvaepp.networks.dense import Dense, linear_side_by_side
from dvaepp.priors import RBM
from dvaepp.smoothing import Exponential
from dvaepp.training import checkpoint, train
from tests.training import toy


def _inputs(*widths: int, dtype: torch.dtype = torch.float64) -> list[Tensor]:
    g = torch.Generator().manual_seed(sum(widths))
    return [torch.randn(4, width, generator=g, dtype=dtype) for width in widths]


@pytest.mark.parametrize("widths", [(3,), (3, 2), (5, 1, 2)])
@pytest.mark.parametrize("with_bias", [True, False])
def test_inputs_side_by_side_are_the_concatenated_ones(widths: Sequence[int], with_bias: bool) -> None:
    weight, x = _inputs(sum(widths))[0], _inputs(*widths)
    bias = torch.randn(4, dtype=torch.float64, requires_grad=True) if with_bias else None
    leaves = [weight.requires_grad_(), *(part.requires_grad_() for part in x)]

    def apply(weight: Tensor, *x: Tensor) -> Tensor:
        return linear_side_by_side(x, weight, bias)

    torch.testing.assert_close(apply(*leaves), linear(torch.cat(x, -1), weight, bias))
    assert gradcheck(apply, leaves) and gradgradcheck(apply, leaves)
    if bias is not None:
        assert gradcheck(lambda b: linear_side_by_side(x, weight, b), bias)
    deep = [part.expand(2, *part.shape) for part in x]
    assert linear_side_by_side(deep, weight, bias).shape == (2, 4, 4)


def test_inputs_without_gradient_get_none() -> None:
    (weight,), (x, zeta) = _inputs(5), _inputs(3, 2)
    weight.requires_grad_(), zeta.requires_grad_()
    linear_side_by_side([x, zeta], weight, None).square().sum().backward()
    assert x.grad is None and weight.grad is not None and zeta.grad is not None
    plain = torch.cat([x, zeta.detach()], -1)
    torch.testing.assert_close(weight.grad, 2 * (plain @ weight.detach().t()).t() @ plain)


@pytest.mark.parametrize("hidden", [(), (5,), (5, 4)])
@pytest.mark.parametrize("batch_norm", [True, False])
def test_frozen_network_is_that_of_evaluation_mode(hidden: tuple[int, ...], batch_norm: bool) -> None:
    net, (x,) = Dense(6, 3, hidden, batch_norm=batch_norm).double(), _inputs(6)
    with torch.no_grad():
        for tensor in [*net.parameters(), *net.buffers()]:
            if tensor.is_floating_point():
                tensor.copy_(torch.rand_like(tensor) + 0.5)
    net.eval()
    h = x
    for index, (weight, bias) in enumerate(net.frozen()):
        h = linear(h if index == 0 else torch.tanh(h), weight, bias)
    torch.testing.assert_close(h, net(x))
    offset = torch.randn(3, dtype=torch.float64)
    torch.testing.assert_close(net(x, offset=offset), net(x) + offset)


@pytest.mark.parametrize("centered_code", [True, False])
def test_likelihood_and_gradients_equal_the_plain_form(centered_code: bool) -> None:
    g = torch.Generator().manual_seed(0)
    model = FeedForward(torch.full((1, 2, 3), 0.3), (2, 3), hidden=(4,), centered_code=centered_code, generator=g)
    x = (torch.rand(8, 6, generator=g) < 0.4).float()
    rho = [torch.rand(8, n, generator=g) for n in (2, 3)]
    zeta = model.posterior(x, rho, Exponential(5.0)).zeta
    ours = model.log_likelihood(x, zeta)
    code = torch.cat(zeta, -1)
    logits = model.output_bias + model.decoder(2 * code - 1 if centered_code else code)
    plain = -binary_cross_entropy_with_logits(logits, x, reduction="none").sum(-1)
    torch.testing.assert_close(ours, plain)
    leaves = [p for net in (model.encoders, model.decoder) for p in net.parameters()]
    gradients = [torch.autograd.grad(v.sum(), leaves, retain_graph=True, allow_unused=True) for v in (ours, plain)]
    for mine, theirs in zip(*gradients, strict=True):
        assert (mine is None) == (theirs is None)
        if mine is not None:
            torch.testing.assert_close(mine, theirs, rtol=1e-4, atol=1e-5)


class _Encoder(torch.nn.Module):
    """A network of one's own, which takes x and earlier groups apart."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.map = torch.nn.Linear(inputs, outputs)

    def forward(self, x: Tensor, *before: Tensor) -> Tensor:
        logits: Tensor = self.map(torch.cat([x.flatten(1), *before], 1))
        return logits


@pytest.mark.parametrize("own", [True, False])
def test_copies_of_a_batch_share_what_depends_on_x_alone(own: bool) -> None:
    """With K importance samples: values and gradients are those of a batch of K times as many images."""
    g = torch.Generator().manual_seed(0)
    model: BinaryVAE = FeedForward(torch.full((1, 2, 3), 0.3), (2, 3), hidden=(4,), generator=g)
    if own:
        encoders = [_Encoder(6, 2), _Encoder(8, 3)]
        model = BinaryVAE(encoders, torch.nn.Linear(5, 6), RBM(2, 3), image_shape=(1, 2, 3), group_sizes=(2, 3))
    x = (torch.rand(8, 1, 2, 3, generator=g) < 0.4).float().repeat(3, 1, 1, 1)
    rho = [torch.rand(24, n, generator=g) for n in (2, 3)]
    shared, plain = (model.posterior(x, rho, Exponential(5.0), copies) for copies in (3, 1))
    for mine, theirs in zip([*shared.logits, *shared.zeta], [*plain.logits, *plain.zeta], strict=True):
        torch.testing.assert_close(mine, theirs)
    leaves = list(model.encoders.parameters())
    slope = torch.randn(24, 3, generator=g)
    gradients = [torch.autograd.grad((found.zeta[1] * slope).sum(), leaves) for found in (shared, plain)]
    for mine, theirs in zip(*gradients, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-4, atol=1e-5)


def test_names_of_saved_tensors_do_not_change() -> None:
    model = FeedForward(torch.full((1, 2, 3), 0.3), (2, 3), hidden=(4,))
    one = ["layers.0.weight", "layers.1.weight", "layers.1.bias"]
    one += [f"norms.0.{n}" for n in ("weight", "bias", "running_mean", "running_var", "num_batches_tracked")]
    expected = {"train_mean", "output_bias", *(f"prior.{n}" for n in ("weight", "bias_left", "bias_right"))}
    expected |= {f"{net}.{name}" for net in ("encoders.0", "encoders.1", "decoder") for name in one}
    assert set(model.state_dict()) == expected


def test_checkpoints_from_before_the_directed_prior_was_a_module_go_on_alike(tmp_path: Path) -> None:
    """`first_logits` and `prior_networks` were the model's own; the optimizer's moments stood in that order."""
    recipe = toy.recipe(toy.stripes(tmp_path), "table2.marginal", steps=4)
    whole, first = (train(recipe, tmp_path / name, say=toy.quiet) for name in ("whole", "first"))
    last = max((first / "checkpoints").glob("step-*.json"))
    last.unlink()
    saved = checkpoint.read(first / "checkpoints", "last")
    assert saved.record["step"] == 2
    weights = checkpoint.under("model", saved.tensors)
    old = {
        name.replace("prior.networks", "prior_networks").replace("prior.first", "first"): weights[name]
        for name in weights
    }
    assert {"first_logits", "prior_networks.0.layers.1.bias"} <= set(old) and not any("prior." in name for name in old)
    # `first_logits` came before all other parameters without weight decay
    names = saved.record.pop("optimized")
    decayed = [name for name in names if name.endswith("weight")]
    order = decayed + sorted(names[len(decayed) :], key=lambda name: name != "prior.first_logits")
    assert order != names
    moments = {}
    for place, name in enumerate(order):
        moments |= checkpoint.with_prefix(
            f"optimizer.{place}", checkpoint.under(f"optimizer.{names.index(name)}", saved.tensors)
        )
    rest = {name: value for name, value in saved.tensors.items() if not name.startswith(("model.", "optimizer."))}
    tensors = checkpoint.with_prefix("model", old) | moments | rest
    checkpoint.write(first / "checkpoints", tensors, saved.record, recipe.model_dump(mode="json"), best=True)
    train(recipe, first, resume=True, say=toy.quiet)
    expected, found = (checkpoint.read(run / "checkpoints", "last").tensors for run in (whole, first))
    assert all(torch.equal(found[name], value) for name, value in expected.items())
