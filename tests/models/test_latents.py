"""KL of the groups against Monte Carlo and quadrature of densities written here, and their weights in the loss."""

import itertools
import math

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from scipy import stats
from torch import Tensor

from dvaepp import recipes
from dvaepp.data import Dataset
from dvaepp.models.latents import LATENTS
from dvaepp.models.noise import BatchNoise
from dvaepp.smoothing import Exponential
from dvaepp.training.state import State, build
from dvaepp.training.step import _loss

BETA = 8.0
NORMAL, BERNOULLI = LATENTS["normal"], LATENTS["bernoulli"]


def _noise(seed: int = 0) -> BatchNoise:
    return BatchNoise(torch.Generator().manual_seed(seed), torch.device("cpu"))


def _random(*shape: int, seed: int, scale: float = 1.0) -> Tensor:
    return scale * torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def _given(*outputs: Tensor) -> list[Tensor]:
    return [NORMAL.parameters(each) for each in outputs]


def _moments(outputs: NDArray[np.float64]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Means are the first half of the channels, log deviations the second, both 5 tanh(v / 5)."""
    bounded = 5 * np.tanh(outputs / 5)
    half = outputs.shape[1] // 2
    return bounded[:, :half], np.exp(bounded[:, half:])


def test_normal_kl_equals_monte_carlo() -> None:
    """3 rows of 2 x 2 x 2 units, 100 000 draws in numpy: within 5 standard errors."""
    q, p = _random(3, 4, 2, 2, seed=0), _random(3, 4, 2, 2, seed=1)
    (mean, sd), (prior_mean, prior_sd) = _moments(q.numpy()), _moments(p.numpy())
    draws = mean + sd * np.random.default_rng(0).standard_normal((100_000, *mean.shape))
    log_ratio = stats.norm.logpdf(draws, mean, sd) - stats.norm.logpdf(draws, prior_mean, prior_sd)
    each = log_ratio.sum((2, 3, 4))
    found = NORMAL.kl(*_given(q, p), torch.zeros(3, 2, 2, 2).double(), Exponential(BETA))
    assert found.shape == (3,)
    error = each.std(0) / math.sqrt(len(each))
    assert (np.abs(found.numpy() - each.mean(0)) < 5 * error).all()
    assert (error < 0.02 * found.numpy()).all(), "the error bar must be small against the KL"


def test_normal_samples_have_the_moments_and_density_they_are_scored_with() -> None:
    """Kolmogorov-Smirnov on 50 000 draws of training and of evaluation, failure rate 1e-4; log density from scipy."""
    parameters = _random(1, 2, 1, 1, seed=2, scale=3.0)
    mean, sd = (float(v.item()) for v in _moments(parameters.numpy()))
    many = NORMAL.parameters(parameters.expand(50_000, -1, -1, -1))
    trained = NORMAL.sample(many, _noise(), Exponential(BETA))
    drawn = NORMAL.draw(many, _noise(1), None)
    assert trained.shape == drawn.value.shape == (50_000, 1, 1, 1)
    assert torch.equal(drawn.value, drawn.scored)
    for values in (trained, drawn.value):
        assert stats.kstest(values.flatten().numpy(), stats.norm(mean, sd).cdf).pvalue > 1e-4
    two = _random(4, 6, 2, 2, seed=3)
    value = _random(4, 3, 2, 2, seed=4)
    expected = stats.norm.logpdf(value.numpy(), *_moments(two.numpy())).sum((1, 2, 3))
    np.testing.assert_allclose(NORMAL.log_prob(NORMAL.parameters(two), value).numpy(), expected, rtol=1e-10)


def test_normal_parameters_are_bounded_in_value_and_finite_in_gradient() -> None:
    extreme = torch.tensor([-1e4, -50.0, 50.0, 1e4]).reshape(4, 1, 1, 1).repeat(1, 2, 1, 1).requires_grad_()
    kl = NORMAL.kl(*_given(extreme, extreme.detach().flip(0)), torch.zeros(4, 1, 1, 1), Exponential(BETA))
    assert torch.isfinite(kl).all() and torch.isfinite(torch.autograd.grad(kl.sum(), extreme)[0]).all()


def test_normal_parameters_of_one_row_serve_all_rows_and_undefined_ones_are_seen() -> None:
    q, p = _random(6, 8, seed=0), _random(1, 8, seed=1)
    one = NORMAL.kl(*_given(q, p), torch.zeros(6, 4).double(), Exponential(BETA))
    each = NORMAL.kl(*_given(q, p.expand(6, -1)), torch.zeros(6, 4).double(), Exponential(BETA))
    torch.testing.assert_close(one, each, rtol=1e-12, atol=0)
    q[2, 3] = torch.nan
    assert NORMAL.kl(*_given(q, p), torch.zeros(6, 4).double(), Exponential(BETA)).isnan().nonzero().tolist() == [[2]]


def _mixture(zeta: NDArray[np.float64], logit: float) -> NDArray[np.float64]:
    """q(ζ) = Σ_z q(z) r(ζ|z) with exponential r."""
    mu, norm = 1 / (1 + math.exp(-logit)), (1 - math.exp(-BETA)) / BETA
    return ((1 - mu) * np.exp(-BETA * zeta) + mu * np.exp(-BETA * (1 - zeta))) / norm


def test_bernoulli_kl_averages_to_the_marginal_kl() -> None:
    """200 000 samples of 3 units a row against quadrature of q log q/p over ζ, unit by unit: 5 standard errors."""
    logits, prior = np.array([[-1.0, 0.5, 2.0], [3.0, -0.2, 0.0]]), np.array([[1.0, -0.5, 0.0], [2.0, 2.0, -1.0]])
    points, weights = np.polynomial.legendre.leggauss(200)
    points, weights = (points + 1) / 2, weights / 2
    exact = np.zeros(2)
    for row, unit in itertools.product(range(2), range(3)):
        q, p = _mixture(points, logits[row, unit]), _mixture(points, prior[row, unit])
        assert abs((weights * q).sum() - 1) < 1e-10
        exact[row] += (weights * q * np.log(q / p)).sum()
    number = 200_000
    for row in range(2):
        many, prior_many = (
            torch.from_numpy(v[row]).reshape(1, 3, 1, 1).expand(number, -1, -1, -1) for v in (logits, prior)
        )
        zeta = BERNOULLI.sample(many, _noise(row), Exponential(BETA))
        kl = BERNOULLI.kl(many, prior_many, zeta, Exponential(BETA))
        assert kl.shape == (number,)
        error = kl.std().item() / math.sqrt(number)
        assert abs(kl.mean().item() - exact[row]) < 5 * error < 0.05 * exact[row]


def test_bernoulli_kl_has_the_gradient_of_the_marginal_kl() -> None:
    """Means over 200 000 samples against quadrature at logits moved by 1e-4: 5 standard errors, seen to be small."""
    logits, prior, step, number = [-1.0, 0.5, 2.0], [1.0, -0.5, 0.0], 1e-4, 200_000
    points, weights = np.polynomial.legendre.leggauss(200)
    points, weights = (points + 1) / 2, weights / 2

    def exact(q_logit: float, p_logit: float) -> float:
        q, p = _mixture(points, q_logit), _mixture(points, p_logit)
        return float((weights * q * np.log(q / p)).sum())

    many, prior_many = (torch.tensor(v).double().reshape(1, 3, 1, 1).repeat(number, 1, 1, 1) for v in (logits, prior))
    many.requires_grad_()
    prior_many.requires_grad_()
    zeta = BERNOULLI.sample(many, _noise(5), Exponential(BETA))
    kl = BERNOULLI.kl(many, prior_many, zeta, Exponential(BETA))
    slopes = torch.autograd.grad(kl.sum(), [many, prior_many])
    for unit, (q, p) in enumerate(zip(logits, prior, strict=True)):
        expected = [exact(q + step, p) - exact(q - step, p), exact(q, p + step) - exact(q, p - step)]
        for slope, difference in zip(slopes, expected, strict=True):
            values = slope[:, unit].flatten()
            error = values.std().item() / math.sqrt(number)
            assert abs(values.mean().item() - difference / (2 * step)) < 5 * error < 0.05


def test_bernoulli_draws_follow_their_probabilities_and_the_smoothing_follows_z() -> None:
    """50 000 draws: frequency of z within 5 standard errors; ζ given z by Kolmogorov-Smirnov, failure rate 1e-4."""
    logit, number = 0.7, 50_000
    many = torch.full((number, 1, 1, 1), logit)
    binary, smooth = BERNOULLI.draw(many, _noise(), None), BERNOULLI.draw(many, _noise(1), Exponential(BETA))
    mu = 1 / (1 + math.exp(-logit))
    for drawn in (binary, smooth):
        assert set(drawn.scored.unique().tolist()) == {0.0, 1.0}
        assert abs(drawn.scored.mean().item() - mu) < 5 * math.sqrt(mu * (1 - mu) / number)
    assert torch.equal(binary.value, binary.scored)

    def cdf0(zeta: NDArray[np.float64]) -> NDArray[np.float64]:
        return np.expm1(-BETA * zeta) / np.expm1(-BETA)

    zeta, z = smooth.value.flatten().double().numpy(), smooth.scored.flatten().numpy()
    assert stats.kstest(zeta[z == 0], cdf0).pvalue > 1e-4
    assert stats.kstest(1 - zeta[z == 1], cdf0).pvalue > 1e-4


def test_bernoulli_log_prob_sums_to_one_over_all_states() -> None:
    states = torch.tensor(list(itertools.product((0.0, 1.0), repeat=4)), dtype=torch.float64).reshape(16, 2, 2, 1)
    logits = _random(1, 2, 2, 1, seed=5, scale=2.0).expand(16, -1, -1, -1)
    log_p = BERNOULLI.log_prob(logits, states)
    assert log_p.shape == (16,) and log_p.exp().sum().item() == pytest.approx(1, abs=1e-12)
    assert log_p[-1].item() == pytest.approx(-np.logaddexp(0, -logits[0].numpy()).sum(), abs=1e-12)


@pytest.mark.parametrize("kind", ["normal", "bernoulli"])
def test_draws_keep_the_type_of_their_parameters(kind: str) -> None:
    """A model in float64 must stay there, in the binary limit, smoothed, and in training."""
    parameters = torch.zeros(2, 2, 1, 1, dtype=torch.float64)
    for smoothing in (None, Exponential(BETA)):
        assert LATENTS[kind].draw(parameters, _noise(), smoothing).value.dtype == torch.float64, smoothing
    assert LATENTS[kind].sample(parameters, _noise(), Exponential(BETA)).dtype == torch.float64


# The loss of the training loop (App. H).

SMALL = {
    "data.path": "tiny.npy",
    "model.image_size": 4,
    "model.down1": '["4d"]',
    "model.down2": '["4d"]',
    "model.upsample": '["4u"]',
    "model.posterior": "[]",
    "model.prior": "[]",
    "model.context": '["4"]',
    "model.upsamples": '[["4u"]]',
    "model.input_filters": 4,
    "model.local_channels": 2,
    "model.local_groups": 3,
    "model.global_units": 4,
    "model.global_groups": 2,
    "training.steps": 100,
    "training.batch_size": 8,
    "chains.num_chains": 10,
}


def _state(name: str, balance: bool) -> tuple[recipes.Recipe, State, Tensor]:
    overrides = {**SMALL, "training.kl_balance": str(balance).lower()}
    recipe = recipes.build(name, ["dataset=omniglot"], [f"{k}={v}" for k, v in overrides.items()])
    g = torch.Generator().manual_seed(0)
    images = (torch.rand(8, 1, 4, 4, generator=g) < 0.5).to(torch.uint8)
    dataset = Dataset("toy", (1, 4, 4), "bernoulli", images, images, images, False)
    state = build(recipe, dataset)
    state.model.double()  # a bias before a batch norm has gradient 0: in float32 nothing but rounding
    for parameter in state.model.parameters():  # far from the start, so that the groups' KL differ
        parameter.data.add_(0.3 * torch.randn(parameter.shape, generator=g))
    if state.chains is not None:
        state = state._replace(chains=state.chains._replace(z=state.chains.z.double()))
    return recipe, state, dataset.images("train").double()


@pytest.mark.parametrize("name, groups", [("table3.rbm", 4), ("table3.bernoulli", 5), ("table3.continuous", 5)])
@pytest.mark.parametrize("balance, step", [(True, 0), (True, 15), (True, 29), (True, 30), (True, 99), (False, 15)])
def test_balanced_weights_average_to_one_and_act_only_while_the_kl_is_annealed(
    name: str, groups: int, balance: bool, step: int
) -> None:
    """Value and gradient of the loop's loss against App. H written out; γ = step / 30 up to 1.

    A Boltzmann prior counts as one group, factorial global groups one by one, then the three local ones.
    """
    recipe, state, x = _state(name, balance)
    gamma = min(1.0, step / 30)
    state = state._replace(step=step, generator=torch.Generator().manual_seed(1))
    loss, found = _loss(recipe, state, x)
    again = BatchNoise(torch.Generator().manual_seed(1), torch.device("cpu"), dtype=torch.float64)
    log_z: Tensor | float = 0.0
    if state.model.prior is not None and state.chains is not None:
        phase = -state.model.prior.energy(state.chains.z).mean()
        log_z = phase - phase.detach() + state.log_z
    expected = state.model.terms(x, Exponential(BETA), again, objective=recipe.training.objective, log_z=log_z)
    kl = expected.kl
    assert kl.shape == (groups, 8) and torch.equal(kl, found.kl)
    alpha = np.ones(groups)
    if balance and gamma < 1:
        alpha = np.maximum(kl.detach().numpy().mean(1), 0) + 0.1
        alpha = groups * alpha / alpha.sum()
        assert alpha.mean() == pytest.approx(1) and alpha.max() > 1.2, "equal weights show nothing"
    by_hand = -(expected.log_likelihood.mean() - gamma * (torch.from_numpy(alpha) * kl.mean(1)).sum())
    assert loss.item() == pytest.approx(by_hand.item(), rel=1e-10)
    parameters = [p for p in state.model.parameters() if p.requires_grad]
    gradients = [torch.autograd.grad(v, parameters, allow_unused=True) for v in (loss, by_hand)]
    largest = max(g.abs().max().item() for g in gradients[1] if g is not None)
    for a, b in zip(*gradients, strict=True):
        assert (a is None) == (b is None)
        if a is not None:
            torch.testing.assert_close(a, b, rtol=1e-8, atol=1e-10 * largest)
