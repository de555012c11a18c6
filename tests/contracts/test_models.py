"""The laws of every model: what the rest of the library asks of one (`dvaepp.models.base`).

Each example is small enough to sum over all codes. Seeds are fixed; with others a statistical test would fail about
once in a million runs (five standard errors).
"""

import itertools
import math
from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from dvaepp.evaluation import log_likelihood
from dvaepp.models import BinaryVAE, FeedForward, Model
from dvaepp.models.architecture import Architecture
from dvaepp.models.build import with_kernels
from dvaepp.models.dvaepp import DVAE
from dvaepp.models.noise import BatchNoise
from dvaepp.priors import RBM, BoltzmannMachine, Directed, Factorial
from dvaepp.smoothing import Exponential

SHAPE = (1, 2, 3)
CPU = torch.device("cpu")


class Second(nn.Module):
    """An encoder of the second group."""

    def __init__(self, inputs: int, units: int) -> None:
        super().__init__()
        self.linear = nn.Linear(inputs, units)

    def forward(self, x: Tensor, before: Tensor) -> Tensor:
        return self.linear(torch.cat([x.flatten(1), before], 1))


def _own(prior: nn.Module, likelihood: object = "bernoulli", outputs: int = 6, second: bool = True) -> BinaryVAE:
    first = nn.Sequential(nn.Conv2d(1, 2, 2), nn.ELU(), nn.Flatten(), nn.Linear(4, 2 if second else 5))
    encoders = [first, Second(6 + 2, 3)] if second else [first]
    model = BinaryVAE(encoders, nn.Linear(5, outputs), prior, likelihood)
    model.prepare(SHAPE, SHAPE)
    return model


def _dvae() -> DVAE:
    tiny = Architecture(
        down1=["4d"],
        down2=["4d"],
        upsample=["4u"],
        posterior=[],
        prior=[],
        context=["4"],
        upsamples=[["4u"]],
        image_size=4,
    )
    return with_kernels(DVAE(SHAPE, tiny, global_units=4, global_groups=2, local_channels=1, local_groups=2))


def _square(parameters: Tensor, x: Tensor) -> Tensor:
    return -((parameters.reshape(x.shape) - x) ** 2).flatten(1).sum(1)


MODELS: dict[str, Callable[[], Model]] = {
    "dense, rbm": lambda: FeedForward(torch.full(SHAPE, 0.3), (2, 3), hidden=(4,)),
    "dense, directed": lambda: FeedForward(torch.full(SHAPE, 0.3), (2, 3), prior="directed", centered_code=True),
    "own, rbm": lambda: _own(RBM(2, 3)),
    "own, one group": lambda: _own(RBM(2, 3), second=False),
    "own, boltzmann machine": lambda: _own(BoltzmannMachine(5)),
    "own, directed": lambda: _own(Directed([2, 3], [nn.Linear(2, 3)])),
    "own, factorial": lambda: _own(Factorial([2, 3])),
    "own, gaussian": lambda: _own(RBM(2, 3), "gaussian", 12),
    "own, grey mixture": lambda: _own(RBM(2, 3), "logistic_mixture", 180),
    "own, function": lambda: _own(Factorial([2, 3]), _square),
    "dvae++": _dvae,
}
ENUMERATED = [name for name in MODELS if name.startswith(("dense", "own"))]
OBJECTIVES = {True: "boltzmann", False: "marginal"}


def _model(name: str) -> Model:
    torch.manual_seed(0)
    model = MODELS[name]()
    g = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(0.6 * torch.randn(parameter.shape, generator=g))
    return model.eval()


def _images(model: Model, n: int = 3) -> Tensor:
    bits = (torch.rand(n, *SHAPE, generator=torch.Generator().manual_seed(2)) < 0.4).float()
    return 2 * bits - 1 if model.reads == "logistic_mixture" else bits


def _exact(model: Model, x: Tensor) -> tuple[np.ndarray, float]:
    """log p(x) by the sum of p(z) p(x|z) over all codes in float64, and log Z; p(x|z) is the model's own."""
    assert isinstance(model, BinaryVAE)
    codes = torch.tensor(list(itertools.product((0.0, 1.0), repeat=model.num_units)))
    with torch.no_grad():
        log_p = model.prior.unnormalized_log_prob(codes).double().numpy()
        groups = codes.split(model.group_sizes, -1)
        log_x = [model.log_likelihood(image.expand(len(codes), *SHAPE), groups).double().numpy() for image in x]
    log_z = float(np.logaddexp.reduce(log_p))
    return np.array([np.logaddexp.reduce(row + log_p - log_z) for row in log_x]), log_z


@pytest.mark.parametrize("name", ENUMERATED)
def test_log_weights_average_to_the_enumerated_evidence(name: str) -> None:
    """E_q[w] is p(x) exactly, in any model: the mean of 20 000 weights, with its own standard error.

    A model that overrides the plain form of `log_weights` is held to both.
    """
    model = _model(name)
    x = _images(model)
    exact, log_z = _exact(model, x)
    assert model.boltzmann is not None or abs(log_z) < 1e-5
    for form in (type(model).log_weights, BinaryVAE.log_weights):
        with torch.no_grad():
            log_w = form(model, x, None, torch.Generator().manual_seed(3))(20_000).double() - log_z
        ratio = (log_w - torch.from_numpy(exact)).exp()
        error = ratio.std(0) / math.sqrt(len(ratio))
        assert bool(((ratio.mean(0) - 1).abs() < 5 * error + 1e-6).all())
        broken = (log_w + 0.3 - torch.from_numpy(exact)).exp()
        assert bool(((broken.mean(0) - 1).abs() > 5 * error).any()), "weights that are off by 0.3 nats must be noticed"


@pytest.mark.parametrize("name", ENUMERATED)
def test_one_sample_bounds_the_evidence_from_below(name: str) -> None:
    model = _model(name)
    x = _images(model)
    exact, log_z = _exact(model, x)
    with torch.no_grad():
        log_w = model.log_weights(x, None, torch.Generator().manual_seed(4))(4000).double() - log_z
        objective = OBJECTIVES[model.boltzmann is not None]
        noise = BatchNoise(torch.Generator().manual_seed(5), CPU)
        found = model.terms(x.repeat(4000, 1, 1, 1), Exponential(200.0), noise, objective=objective, log_z=log_z)
    training = (found.log_likelihood - found.kl.sum(0)).double().reshape(4000, -1)
    # at β = 200 the smoothed model that is trained is nearly the binary one that was summed
    for bound, slack in ((log_w, 0.0), (training, 0.1)):
        error = bound.std(0) / math.sqrt(len(bound))
        assert bool((bound.mean(0) < torch.from_numpy(exact) + 5 * error + slack).all())
    assert bool((log_w.mean(0) < torch.from_numpy(exact)).all())


@pytest.mark.parametrize("name", MODELS)
def test_shapes_names_and_codes(name: str) -> None:
    model = _model(name)
    x, objective = _images(model), OBJECTIVES[model.boltzmann is not None]
    with torch.no_grad():
        found = model.terms(x, Exponential(8.0), BatchNoise(None, CPU), objective=objective)
        assert found.log_likelihood.shape == (3,) and found.kl.shape == (len(model.kl_names()), 3)
        assert [group.shape for group in found.logits] == [(3, size) for size in model.group_sizes]
        code = model.encode(x)
        assert code.shape == (3, model.num_units) == model.sample_code(3, torch.Generator().manual_seed(0)).shape
        assert torch.equal(code, code.bool().to(code.dtype))
        for mean in (True, False):
            images = model.decode(code, torch.Generator().manual_seed(0), mean)
            assert images.shape == model.reconstruct(x, mean=mean).shape == (3, *model.image_shape)
        assert model.shown(images).shape == images.shape
    assert model.summary()[-1].parameters == sum(p.numel() for p in model.parameters())
    estimate = log_likelihood(model, x, 10, generator=torch.Generator().manual_seed(0))
    assert estimate.shape == (3,) and estimate.dtype == torch.float64 and bool(estimate.isfinite().all())


@pytest.mark.parametrize("name", MODELS)
def test_weights_go_through_a_state_dict_and_no_others_do(name: str) -> None:
    model, other = _model(name), MODELS[name]()
    other.check_weights(model.state_dict())
    other.load_state_dict(model.state_dict())
    x = _images(model)
    assert torch.equal(model.encode(x), other.eval().encode(x))
    weights = model.state_dict()
    first = next(iter(weights))
    with pytest.raises(ValueError, match=rf"another architecture: {first} is missing there"):
        other.check_weights({key: value for key, value in weights.items() if key != first})
