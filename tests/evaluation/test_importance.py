"""Importance estimates of log p(x) against the sum over all codes of small models."""

import itertools
import math

import numpy as np
import pytest
import torch
from torch import Tensor

from dvaepp.evaluation import log_likelihood, streamed_log_mean
from dvaepp.kernels import bernoulli
from dvaepp.models.dense_weights import DenseWeights
from dvaepp.models.feedforward import FeedForward
from dvaepp.smoothing import Exponential

PIXELS = 6


def _model(prior: str, groups: tuple[int, ...] = (2, 3), hidden: tuple[int, ...] = (4,)) -> FeedForward:
    g = torch.Generator().manual_seed(0)
    model = FeedForward(torch.full((1, 2, 3), 0.3), groups, hidden=hidden, prior=prior, generator=g)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=g) * (1.0 if "weight" in name else 0.5))
        for name, buffer in model.named_buffers():
            if name.endswith("running_var"):
                buffer.copy_(torch.rand(buffer.shape, generator=g) + 0.5)
    return model.eval()


def _exact(model: FeedForward, x: Tensor) -> tuple[np.ndarray, float]:
    """log p(x) by summing p(z) p(x|z) over every code in float64 numpy, and log Z of an RBM prior."""
    codes = torch.tensor(list(itertools.product((0.0, 1.0), repeat=model.num_units)))
    groups = list(codes.split(model.group_sizes, -1))
    with torch.no_grad():
        logits = model.likelihood_parameters(groups).double().numpy()
        if model.boltzmann is not None:
            log_weight = -model.prior.energy(codes).double().numpy()
            log_z = float(np.logaddexp.reduce(log_weight))
            log_p = log_weight - log_z
        else:
            log_z, log_p = 0.0, np.zeros(len(codes))
            for z, p in zip(groups, model.prior.logits(groups), strict=True):
                z, p = z.double().numpy(), np.broadcast_to(p.double().numpy(), z.shape)
                log_p = log_p - np.logaddexp(0, np.where(z == 1, -p, p)).sum(1)
    pixels = x.double().numpy()[:, None, :]
    log_x = -np.logaddexp(0, np.where(pixels == 1, -logits, logits)).sum(-1)
    return np.logaddexp.reduce(log_x + log_p, axis=1), log_z


def _images() -> Tensor:
    return (torch.rand(5, PIXELS, generator=torch.Generator().manual_seed(1)) < 0.4).float()


@pytest.mark.parametrize("prior", ["rbm", "directed"])
@pytest.mark.parametrize("groups", [(4,), (2, 3)])
def test_estimate_approaches_the_exact_value_from_below(prior: str, groups: tuple[int, ...]) -> None:
    """Non-decreasing in K in the mean, never above log p(x), each within 5 standard errors."""
    model, x = _model(prior, groups), _images()
    exact, log_z = _exact(model, x)
    means, errors = [], []
    for samples, repeats in ((1, 2000), (10, 400), (100, 60), (4000, 4)):
        g = torch.Generator().manual_seed(samples)
        runs = torch.stack([log_likelihood(model, x, samples, log_z=log_z, generator=g).mean() for _ in range(repeats)])
        means.append(runs.mean().item())
        errors.append(runs.std().item() / math.sqrt(repeats))
    for mean, error in zip(means, errors, strict=True):
        assert mean <= exact.mean() + 5 * error + 1e-6
    for (a, ea), (b, eb) in itertools.pairwise(zip(means, errors, strict=True)):
        assert b >= a - 5 * math.hypot(ea, eb)
    assert means[0] < exact.mean() - 0.1, "one sample must leave a visible gap, or the test sees nothing"
    assert abs(means[-1] - exact.mean()) < 0.1  # the posterior is random, not trained


@pytest.mark.parametrize("prior", ["rbm", "directed"])
def test_block_size_changes_rounding_only(prior: str) -> None:
    model, x = _model(prior), _images()
    values = [
        log_likelihood(model, x, 100, generator=torch.Generator().manual_seed(0), rows=rows)
        for rows in (1, 40, 100, 10_000)
    ]
    for value in values[1:]:
        torch.testing.assert_close(value, values[0], rtol=1e-5, atol=0)


def test_smoothed_model_tends_to_the_binary_limit() -> None:
    """At a large β the smoothed weights (App. I) are those of the binary model."""
    model, x = _model("rbm"), _images()
    g = torch.Generator
    binary, sharp, soft = (
        log_likelihood(model, x, 40_000, smoothing=s, generator=g().manual_seed(0))
        for s in (None, Exponential(1e4), Exponential(0.5))
    )
    assert (binary - sharp).abs().max() < 0.1 < (binary - soft).abs().max()


def test_bad_number_of_samples_is_named() -> None:
    with pytest.raises(ValueError, match="num_samples must be at least 1, got 0"):
        log_likelihood(_model("rbm"), _images(), 0)


def test_streamed_mean_is_the_mean_of_all_weights() -> None:
    """Whatever the blocks, and without overflow at weights far outside float64's exponent."""
    log_w = 500 * torch.randn(23, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    log_w[:, 3] = -torch.inf
    exact = torch.logsumexp(log_w, 0) - math.log(23)
    for per_block in (1, 8, 23, 100):
        rest = iter(log_w)
        value = streamed_log_mean(lambda k, rest=rest: torch.stack([next(rest) for _ in range(k)]), 23, per_block)
        assert next(rest, None) is None
        torch.testing.assert_close(value, exact)


@pytest.mark.parametrize("prior", ["rbm", "directed"])
@pytest.mark.parametrize("centered_code", [True, False])
def test_weights_equal_the_model_s_own_terms(prior: str, centered_code: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """p(x|z) p(z) / q(z|x) by the model's public methods on the same samples; with and without compiled code."""
    model, x = _model(prior), _images()
    model.centered_code = centered_code
    weights = DenseWeights(model, x, None, torch.Generator().manual_seed(0))
    drawn: list[Tensor] = []
    monkeypatch.setattr(
        weights, "_log_prior", lambda z, zeta: drawn.append(z) or DenseWeights._log_prior(weights, z, zeta)
    )
    with torch.no_grad():
        log_w = weights.draw(20)
        z = list(drawn[0].split(model.group_sizes, -1))
        images = x.repeat(20, 1)
        centered = images - model.train_mean
        expected = model.log_likelihood(images, z)
        for a, net in enumerate(model.encoders):
            expected -= bernoulli.log_prob(z[a], net(centered, *z[:a]))
        if model.boltzmann is not None:
            expected -= model.prior.energy(drawn[0])
        else:
            for s, p in zip(z, model.prior.logits(z), strict=True):
                expected += bernoulli.log_prob(s, p.expand_as(s))
    torch.testing.assert_close(log_w, expected.view(20, len(x)), rtol=1e-5, atol=1e-5)
    monkeypatch.setenv("DVAEPP_KERNEL", "-bernoulli")
    values = log_likelihood(model, x, 20, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(values, streamed_log_mean(lambda k: log_w, 20, 20), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("prior", ["rbm", "directed"])
def test_double_model_gives_the_same_estimate(prior: str) -> None:
    model, x = _model(prior), _images()
    single, double = (
        log_likelihood(model.to(dtype), x.to(dtype), 50, generator=torch.Generator().manual_seed(0))
        for dtype in (torch.float32, torch.float64)
    )
    torch.testing.assert_close(single, double, rtol=1e-5, atol=1e-5)
