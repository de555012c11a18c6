"""Importance estimates of DVAE++ against log p(x) by enumeration of z and h, and by quadrature where h or ζ is real."""

import copy
import itertools
import math

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from scipy import stats
from torch import Tensor

from dvaepp.evaluation import log_likelihood
from dvaepp.models.architecture import Architecture
from dvaepp.models.dvaepp import DVAE
from dvaepp.models.noise import BatchNoise
from dvaepp.models.sources import PosteriorSource
from dvaepp.smoothing import Exponential
from tests.enumeration import energies, log_partition, log_sum_exp, states

# Images of 2x2 pixels, latents on one pixel or on four; conditional decoders score scales 1 and 2.
ON_ONE = Architecture(("3d",), ("3",), ("3",), ("3",), (), ("3",), (("3u",),), 2, 2)
ON_FOUR = Architecture(("3",), ("3d",), ("3u",), (), ("3",), ("3",), (("3",),), 2, 2)
BETA = 8.0
Array = NDArray[np.float64]


def _model(architecture: Architecture, spread: float = 0.35, **options: object) -> DVAE:
    """Every parameter and statistic random; q is off by enough to leave a gap, p not so far that weights explode."""
    g = torch.Generator().manual_seed(4)
    model = DVAE((1, 2, 2), architecture, local_channels=1, generator=g, **options)
    with torch.no_grad():
        strong = ("prior", "decoder", *(("p.", "upsample") if options["local_kind"] == "bernoulli" else ()))
        for name, parameter in model.named_parameters():
            scale = spread if name.startswith(strong) else 0.2
            parameter.add_(scale * torch.randn(parameter.shape, generator=g))
        if model.local_latent.parameters_per_unit == 2:
            for network in model.q.networks:  # a normal q wider than p
                list(network.children())[-1].skip.bias[1] += 1
        for name, buffer in model.named_buffers():
            if name.endswith("running_var"):
                buffer.copy_(torch.rand(buffer.shape, generator=g) + 0.5)
    return model.eval()


def _images() -> Tensor:
    """Four of the sixteen."""
    bits = [(0, 0, 0, 0), (1, 0, 1, 1), (0, 1, 1, 0), (1, 1, 1, 1)]
    return torch.tensor(bits, dtype=torch.float32).reshape(4, 1, 2, 2)


def _log_bernoulli(value: Array, logits: Array) -> Array:
    return -np.logaddexp(0, np.where(value == 1, -logits, logits))


def _boltzmann(model: DVAE) -> tuple[Array, Array]:
    assert model.prior is not None
    n = model.prior.num_left
    bias = torch.cat([model.prior.bias_left, model.prior.bias_right]).detach().double().numpy()
    coupling = np.zeros((len(bias), len(bias)))
    coupling[:n, n:] = model.prior.weight.detach().double().numpy()
    return bias, coupling + coupling.T


def _log_prior(model: DVAE) -> Array:
    """log p(z) of every global state."""
    if model.global_kind == "rbm":
        bias, coupling = _boltzmann(model)
        return -energies(bias, coupling) - log_partition(bias, coupling)
    logits = model.prior_parameters.detach().double().numpy()
    return _log_bernoulli(states(model.num_units), logits).sum(1)


def _log_z(model: DVAE) -> float:
    return log_partition(*_boltzmann(model)) if model.global_kind == "rbm" else 0.0


class _Double:
    """The generative networks in float64, one concatenation after another."""

    def __init__(self, model: DVAE) -> None:
        self.model = copy.deepcopy(model).double()

    @torch.no_grad()
    def up(self, zeta: Array) -> Tensor:
        return self.model.upsample(torch.from_numpy(zeta)[:, :, None, None])

    @torch.no_grad()
    def prior(self, j: int, up: Tensor, h: list[Tensor]) -> Tensor:
        return self.model.p.networks[j](torch.cat([up, *h], 1))

    @torch.no_grad()
    def log_x(self, x: Tensor, up: Tensor, h: list[Tensor]) -> Array:
        """(images, rows)."""
        features = torch.cat([up, *h], 1)
        rows = [self.model.decoder(features, image.double().expand(len(up), -1, -1, -1)) for image in x]
        return torch.stack(rows).numpy()


def _enumerated(model: DVAE, x: Tensor) -> Array:
    """log p(x) = log Σ_z Σ_h p(z) p(h|z) p(x|z, h), everything binary."""
    net = _Double(model)
    size, groups = model.resolution, model.q.num_groups
    z, local = states(model.num_units), states(groups * size**2)
    pairs = np.array(list(itertools.product(range(len(z)), range(len(local)))))
    up = net.up(z[pairs[:, 0]])
    h = list(torch.from_numpy(local[pairs[:, 1]]).reshape(-1, groups, size, size).split(1, 1))
    log_p = _log_prior(model)[pairs[:, 0]]
    for j in range(groups):
        log_p = log_p + _log_bernoulli(h[j].numpy(), net.prior(j, up, h[:j]).numpy()).sum((1, 2, 3))
    assert abs(log_sum_exp(log_p)) < 1e-9, "the prior over z and h has mass one"
    return np.logaddexp.reduce(net.log_x(x, up, h) + log_p, 1)


def _integrated(model: DVAE, x: Tensor, nodes: int = 801) -> Array:
    """The same with one normal local unit: h = mean + sd t, trapezoid in t on [-9, 9]."""
    net = _Double(model)
    z = states(model.num_units)
    t = np.linspace(-9, 9, nodes)
    log_weight = -(t**2) / 2 - math.log(2 * math.pi) / 2 + math.log(t[1] - t[0])
    up = net.up(np.repeat(z, nodes, 0))
    mean, log_sd = (5 * torch.tanh(net.prior(0, up, []) / 5)).split(1, 1)
    h = mean + log_sd.exp() * torch.from_numpy(np.tile(t, len(z))).reshape(-1, 1, 1, 1)
    log_p = np.repeat(_log_prior(model), nodes) + np.tile(log_weight, len(z))
    assert abs(log_sum_exp(log_p)) < 1e-9
    return np.logaddexp.reduce(net.log_x(x, up, [h]) + log_p, 1)


def _log_r(zeta: Array, z: Array) -> Array:
    """log r(ζ|z), exponential."""
    return -BETA * np.abs(zeta - z) - math.log((1 - math.exp(-BETA)) / BETA)


def _smoothed(model: DVAE, x: Tensor, nodes: int) -> Array:
    """log ∫ p(ζ) Π p(η_j|ζ, η_<j) p(x|ζ, η): Bernoulli local units on one pixel, everything smoothed.

    p(ζ) = Σ_z p(z) Π r(ζ_i|z_i), and likewise for each η_j; a Gauss-Legendre product rule.
    """
    net = _Double(model)
    units, groups = model.num_units, model.q.num_groups
    points, weights = np.polynomial.legendre.leggauss(nodes)
    grid = np.array(list(itertools.product((points + 1) / 2, repeat=units + groups)))
    log_p = np.log(list(itertools.product(weights / 2, repeat=units + groups))).sum(1)
    zeta = grid[:, :units]
    each = [p + _log_r(zeta, z).sum(1) for p, z in zip(_log_prior(model), states(units), strict=True)]
    log_p = log_p + np.logaddexp.reduce(each)
    up = net.up(zeta)
    h = list(torch.from_numpy(grid[:, units:]).reshape(-1, groups, 1, 1).split(1, 1))
    for j in range(groups):
        logits, eta = net.prior(j, up, h[:j]).flatten().numpy(), grid[:, units + j]
        log_p = log_p + np.logaddexp(*(_log_bernoulli(np.array(v), logits) + _log_r(eta, v) for v in (0.0, 1.0)))
    assert abs(log_sum_exp(log_p)) < 1e-6, "the quadrature is too coarse"
    return np.logaddexp.reduce(net.log_x(x, up, h) + log_p, 1)


CASES = {
    "rbm, bernoulli on one pixel": (ON_ONE, dict(global_kind="rbm", local_kind="bernoulli", local_groups=3)),
    "rbm, bernoulli on four pixels": (ON_FOUR, dict(global_kind="rbm", local_kind="bernoulli", local_groups=2)),
    "factorial, bernoulli, unconditional": (
        ON_ONE,
        dict(global_kind="bernoulli", local_kind="bernoulli", local_groups=2, conditional=False),
    ),
    "rbm, normal": (ON_ONE, dict(global_kind="rbm", local_kind="normal", local_groups=1)),
}


def _case(name: str) -> tuple[DVAE, Array]:
    architecture, options = CASES[name]
    model = _model(architecture, global_units=4, global_groups=2, **options)
    exact = _integrated(model, _images()) if "normal" in name else _enumerated(model, _images())
    return model, exact


def _repeated(model: DVAE, samples: int, repeats: int, seed: int, rows: int = 8000, **options: object) -> Tensor:
    """Independent estimates (repeats, images): copies of the images in one batch."""
    x = _images().repeat(repeats, 1, 1, 1)
    g = torch.Generator().manual_seed(seed)
    found = log_likelihood(model, x, samples, log_z=_log_z(model), generator=g, rows=rows, **options)
    assert found.dtype == torch.float64
    return found.reshape(repeats, 4)


@pytest.mark.parametrize("name", CASES)
def test_estimate_approaches_the_exact_value_from_below(name: str) -> None:
    """Per image: never above log p(x), non-decreasing in K in the mean, each within 5 standard errors."""
    model, exact = _case(name)
    means, errors = [], []
    for samples, repeats in ((1, 2000), (10, 400), (100, 100), (1000, 20)):
        runs = _repeated(model, samples, repeats, seed=samples).numpy()
        means.append(runs.mean(0))
        errors.append(runs.std(0, ddof=1) / math.sqrt(repeats))
    for mean, error in zip(means, errors, strict=True):
        assert (mean <= exact + 5 * error + 1e-5).all()
    for (a, ea), (b, eb) in itertools.pairwise(zip(means, errors, strict=True)):
        assert (b >= a - 5 * np.hypot(ea, eb)).all()
    assert (means[0] < exact - 0.02).any(), "one sample must leave a visible gap, or the test sees nothing"
    weights = np.exp(_repeated(model, 1, 20_000, seed=7).numpy() - exact)  # E[w] = p(x), whatever q
    error = weights.std(0) / math.sqrt(len(weights))
    assert (np.abs(weights.mean(0) - 1) < 5 * error).all() and np.median(error) < 0.1


def _log_normal(value: Tensor, parameters: Tensor) -> Array:
    mean, log_sd = (5 * torch.tanh(parameters / 5)).chunk(2, 1)
    return stats.norm.logpdf(value.numpy(), mean.numpy(), log_sd.exp().numpy())


@pytest.mark.parametrize("global_kind", ["rbm", "bernoulli", "normal", "none"])
@pytest.mark.parametrize("local_kind", ["normal", "bernoulli"])
@pytest.mark.parametrize("smoothing", [None, Exponential(BETA)])
def test_one_weight_equals_its_definition(global_kind: str, local_kind: str, smoothing: Exponential | None) -> None:
    """log p(x|ζ, h) + log p(z) + log p(h|ζ) - log q(z|x) - log q(h|x, ζ) at the very draw, term by term in float64."""
    model = _model(ON_FOUR, 0.5, global_kind=global_kind, local_kind=local_kind, global_units=4, local_groups=3)
    x = _images()
    found = log_likelihood(
        model, x, 1, log_z=_log_z(model), smoothing=smoothing, generator=torch.Generator().manual_seed(3)
    )
    with torch.no_grad():
        noise = BatchNoise(torch.Generator().manual_seed(3), torch.device("cpu"))
        drawn = model.top_down(PosteriorSource(model, model.features(x), noise, smoothing, exact=True), 4)
        net = copy.deepcopy(model).double()
        zeta, z = ([g[i].double() for g in drawn.zeta] for i in (0, 1))
        h, bits = ([g[i].double() for g in drawn.h] for i in (0, 1))
        maps = net.norm1(net.down1(net.input_norm(x.double())))
        expected = np.zeros(4)
        if global_kind == "none":
            up = net.constant.expand(4, -1, -1, -1)
        else:
            top = net.norm2(net.down2(maps)).flatten(1)
            score = _log_normal if global_kind == "normal" else lambda v, p: _log_bernoulli(v.numpy(), p.numpy())
            for i, value in enumerate(z):
                expected -= score(value, net.encoders[i](torch.cat([top, *zeta[:i]], 1))).sum(1)
            up = net.upsample(torch.cat(zeta, 1)[:, :, None, None])
            code = torch.cat(z, 1).numpy()
            if global_kind == "normal":
                expected += stats.norm.logpdf(code).sum(1)
            else:
                place = [states(4).tolist().index(row) for row in code.tolist()]
                expected += _log_prior(model)[place]
        score = _log_normal if local_kind == "normal" else lambda v, p: _log_bernoulli(v.numpy(), p.numpy())
        for j, value in enumerate(bits):
            expected += score(value, net.p.networks[j](torch.cat([up, *h[:j]], 1))).sum((1, 2, 3))
            expected -= score(value, net.q.networks[j](torch.cat([maps, up, *h[:j]], 1))).sum((1, 2, 3))
        expected += net.decoder(torch.cat([up, *h], 1), x.double()).numpy()
    np.testing.assert_allclose(found.numpy(), expected, rtol=1e-4, atol=1e-4)  # the model works in float32


@pytest.mark.parametrize("kind", ["rbm", "bernoulli"])
def test_an_image_space_summed_over_has_mass_one(kind: str) -> None:
    """Σ_x p(x) over all 16 images from 10 000 weights each: within 5 standard errors of 1."""
    options = dict(global_kind=kind, local_kind="normal", global_units=4, global_groups=2, local_groups=3)
    model = _model(ON_ONE, **options)
    images = torch.from_numpy(states(4)).float().reshape(16, 1, 2, 2)
    g = torch.Generator().manual_seed(0)
    copies = images.repeat(250, 1, 1, 1)
    found = log_likelihood(model, copies, 40, log_z=_log_z(model), generator=g, rows=16_000)
    sums = found.exp().reshape(250, 16).sum(1)
    error = sums.std().item() / math.sqrt(250)
    assert abs(sums.mean().item() - 1) < 5 * error < 0.25


@pytest.mark.parametrize("name", ["rbm, bernoulli on one pixel", "rbm, normal"])
def test_block_size_changes_the_order_of_noise_only(name: str) -> None:
    """Estimates with blocks of 1, 7 and all samples agree in the mean within 5 standard errors (rate below 1e-5)."""
    model, _ = _case(name)
    runs = [_repeated(model, 20, 200, seed=s, rows=r).numpy() for s, r in ((0, 1), (1, 800 * 7), (2, 800 * 20))]
    for other in runs[1:]:
        error = np.hypot(runs[0].std(0), other.std(0)) / math.sqrt(200)
        assert (np.abs(runs[0].mean(0) - other.mean(0)) < 5 * error).all()


def _few_units(kind: str) -> tuple[DVAE, int]:
    """One global and one local unit, or two of each behind an RBM; and how fine a quadrature they can afford."""
    number, nodes, spread = (2, 14, 0.6) if kind == "rbm" else (1, 80, 1.0)
    options = dict(global_kind=kind, global_units=number, global_groups=number, local_groups=number)
    model = _model(ON_ONE, spread=spread, local_kind="bernoulli", **options)
    if kind == "rbm":
        with torch.no_grad():  # an energy and a p(η₂|η₁) that tell ζ from z
            for parameter in model.prior.parameters():
                parameter.mul_(3)
            model.p.networks[1][0].skip.weight[:, -1] = 6
    return model, nodes


@pytest.mark.parametrize("kind", ["bernoulli", "rbm"])
def test_smoothed_estimate_approaches_the_quadrature_over_zeta(kind: str) -> None:
    """App. I at β = 8: weights average to p(x), and 1000 of them give log p(x), within 5 standard errors."""
    model, nodes = _few_units(kind)
    exact = _smoothed(model, _images(), nodes)
    estimates = _repeated(model, 1000, 40, seed=0, smoothing=Exponential(BETA)).numpy()
    error = estimates.std(0) / math.sqrt(40)
    assert (np.abs(estimates.mean(0) - exact) < 5 * error + 0.01).all() and np.median(error) < 0.05
    weights = np.exp(_repeated(model, 1, 50_000, seed=1, smoothing=Exponential(BETA)).numpy() - exact)
    error = weights.std(0) / math.sqrt(50_000)
    assert (np.abs(weights.mean(0) - 1) < 5 * error).all() and error.min() < 0.01
    binary = _enumerated(model, _images())
    assert np.abs(binary - exact).max() > 0.05, "at β = 8 the smoothed model must differ from the binary one"
    sharp = _repeated(model, 1000, 40, seed=0, smoothing=Exponential(1e4)).numpy()
    assert (np.abs(sharp.mean(0) - binary) < 5 * sharp.std(0) / math.sqrt(40) + 0.01).all()


def test_training_bound_lies_below_the_smoothed_log_likelihood() -> None:
    """E[log p(x|ζ, η) - KL] for the marginal bound, 40 000 samples: below the quadrature, by less than q is off."""
    model, nodes = _few_units("bernoulli")
    exact = _smoothed(model, _images(), nodes)
    x = _images().repeat(10_000, 1, 1, 1)
    with torch.no_grad():
        noise = BatchNoise(torch.Generator().manual_seed(0), torch.device("cpu"))
        found = model.terms(x, Exponential(BETA), noise, objective="marginal")
    bound = (found.log_likelihood - found.kl.sum(0)).double().reshape(-1, 4).numpy()
    error = bound.std(0) / math.sqrt(len(bound))
    assert (bound.mean(0) <= exact + 5 * error).all()
    weights = np.exp(bound - exact)  # Eq. 5 is the logarithm of a weight whose mean is p(x)
    assert (np.abs(weights.mean(0) - 1) < 5 * weights.std(0) / math.sqrt(len(bound))).all()


def test_bad_number_of_samples_is_named() -> None:
    with pytest.raises(ValueError, match="num_samples must be at least 1, got 0"):
        log_likelihood(_few_units("rbm")[0], _images(), 0)
