"""Pixels from a network's channels: order and numbers against float64 references in numpy."""

import itertools
import math

import numpy as np
import torch
from scipy.special import expit, logsumexp

from dvaepp.models.likelihoods import likelihood

COLOUR = likelihood("logistic_mixture", 3)
GREY = likelihood("logistic_mixture", 1)
BINARY = likelihood("bernoulli", 1)


def _reference(channels: np.ndarray, pixel: np.ndarray) -> float:
    """One pixel (R, G, B) from its 100 channels: 10 logits; means, log-scales, coefficients, each three x 10."""
    logits, (means, log_scales, raw) = channels[:10], channels[10:].reshape(3, 3, 10)
    green_red, blue_red, blue_green = np.tanh(raw)
    red, green, blue = pixel
    centres = [means[0], means[1] + green_red * red, means[2] + blue_red * red + blue_green * green]
    log_mass = logits - logsumexp(logits)
    for value, centre, log_scale in zip((red, green, blue), centres, log_scales, strict=True):
        scale = np.exp(np.maximum(log_scale, -7))
        above = np.ones(10) if value > 1 - 1 / 255 else expit((value + 1 / 255 - centre) / scale)
        below = np.zeros(10) if value < -1 + 1 / 255 else expit((value - 1 / 255 - centre) / scale)
        log_mass = log_mass + np.log(above - below)
    return float(logsumexp(log_mass))


def test_colour_pixels_read_their_channels_in_order() -> None:
    g = torch.Generator().manual_seed(0)
    parameters = torch.randn(2, 100, 4, 3, generator=g, dtype=torch.float64)
    parameters[:, 40:70] = 0.3 * parameters[:, 40:70] - 0.5  # log-scales of bins that do not cancel
    level = torch.randint(256, (2, 3, 4, 3), generator=g)
    level[0, :, 0, 0], level[1, :, 0, 0] = 0, 255
    x = level.double() / 127.5 - 1
    found = COLOUR.log_prob(parameters, x)
    assert found.shape == (2, 4, 3)
    for n, i, j in itertools.product(range(2), range(4), range(3)):
        expected = _reference(parameters[n, :, i, j].numpy(), x[n, :, i, j].numpy())
        assert abs(found[n, i, j].item() - expected) < 1e-9
        swapped = _reference(parameters[n, :, i, j].numpy(), x[n, [2, 1, 0], i, j].numpy())
        assert abs(expected - swapped) > 1e-6 or (level[n, 0, i, j] == level[n, 2, i, j])


def test_colour_samples_lie_on_levels_and_average_to_the_mean_where_bins_are_narrow() -> None:
    """Narrow components inside the range: 20 000 samples, 5 standard errors plus half a level of rounding."""
    g = torch.Generator().manual_seed(0)
    one = torch.zeros(1, 100, 1, 2, dtype=torch.float64)
    one[:, :10] = torch.randn(1, 10, 1, 2, generator=g)
    one[:, 10:40] = torch.rand(1, 30, 1, 2, generator=g) - 0.5
    one[:, 40:70] = -6
    one[:, 70:] = torch.rand(1, 30, 1, 2, generator=g) - 0.5
    x = COLOUR.sample(one.expand(20_000, -1, -1, -1), g)
    assert x.shape == (20_000, 3, 1, 2)
    levels = (x + 1) * 127.5
    assert (levels - levels.round()).abs().max() < 1e-6 and 0 <= levels.min() and levels.max() <= 255
    assert torch.isfinite(COLOUR.log_prob(one.expand(20_000, -1, -1, -1), x)).all()
    mean = COLOUR.mean(one)
    assert mean.shape == (1, 3, 1, 2)
    error = x.std(0) / math.sqrt(20_000)
    assert ((x.mean(0) - mean[0]).abs() < 5 * error + 1 / 255).all()


def _grey_reference(channels: np.ndarray, value: float) -> float:
    """One grey pixel from its 30 channels: 10 logits, 10 means, 10 log-scales."""
    logits, means, log_scales = channels.reshape(3, 10)
    scale = np.exp(np.maximum(log_scales, -7))
    above = 1.0 if value > 1 - 1 / 255 else expit((value + 1 / 255 - means) / scale)
    below = 0.0 if value < -1 + 1 / 255 else expit((value - 1 / 255 - means) / scale)
    return float(logsumexp(logits - logsumexp(logits), b=above - below))


def test_grey_pixels_of_256_levels_read_their_channels_in_order() -> None:
    g = torch.Generator().manual_seed(0)
    parameters = torch.randn(2, 30, 4, 3, generator=g, dtype=torch.float64)
    parameters[:, 20:] = 0.3 * parameters[:, 20:] - 0.5
    level = torch.randint(256, (2, 1, 4, 3), generator=g)
    level[0, :, 0, 0], level[1, :, 0, 0] = 0, 255
    x = level.double() / 127.5 - 1
    found = GREY.log_prob(parameters, x)
    assert found.shape == (2, 4, 3)
    for n, i, j in itertools.product(range(2), range(4), range(3)):
        channels = parameters[n, :, i, j].numpy()
        assert abs(found[n, i, j].item() - _grey_reference(channels, x[n, 0, i, j].item())) < 1e-9
        swapped = np.concatenate([channels[:10], channels[20:], channels[10:20]])
        assert abs(found[n, i, j].item() - _grey_reference(swapped, x[n, 0, i, j].item())) > 1e-4, "order matters"


def test_grey_pixels_sum_to_one_and_samples_average_to_the_mean() -> None:
    """256 levels have probability 1. Narrow components: 20 000 samples, 5 standard errors plus half a level."""
    g = torch.Generator().manual_seed(0)
    wide = torch.randn(1, 30, 1, 1, generator=g, dtype=torch.float64).expand(256, -1, -1, -1)
    levels = (torch.arange(256, dtype=torch.float64) / 127.5 - 1).reshape(256, 1, 1, 1)
    assert abs(GREY.log_prob(wide, levels).logsumexp(0).item()) < 1e-9
    one = torch.rand(1, 30, 1, 2, generator=g, dtype=torch.float64) - 0.5
    one[:, 20:] = -6
    x = GREY.sample(one.expand(20_000, -1, -1, -1), g)
    assert x.shape == (20_000, 1, 1, 2) and ((x + 1) * 127.5 - ((x + 1) * 127.5).round()).abs().max() < 1e-6
    assert ((x.mean(0) - GREY.mean(one)[0]).abs() < 5 * x.std(0) / math.sqrt(20_000) + 1 / 255).all()


def test_pictures_run_from_black_at_0_to_white_at_1() -> None:
    ends = torch.tensor([-1.0, 0.0, 1.0])
    assert GREY.shown(ends).tolist() == COLOUR.shown(ends).tolist() == [0.0, 0.5, 1.0]
    assert BINARY.shown(ends[1:]).tolist() == [0.0, 1.0]


def test_binary_pixels_are_bernoulli() -> None:
    """Log-probabilities from logits in float64; 40 000 samples per logit within 5 standard errors of σ."""
    logits = torch.tensor([-60.0, -2.0, 0.0, 0.5, 3.0], dtype=torch.float64).reshape(5, 1, 1, 1)
    expected = np.array([-60.0, math.log(expit(-2)), math.log(0.5), math.log(expit(0.5)), math.log(expit(3))])
    np.testing.assert_allclose(BINARY.log_prob(logits, torch.ones(5, 1, 1, 1).double()).flatten(), expected, rtol=1e-9)
    off = BINARY.log_prob(-logits, torch.zeros(5, 1, 1, 1).double())
    assert off.shape == (5, 1, 1)
    np.testing.assert_allclose(off.flatten(), expected, rtol=1e-9)
    p = expit(logits.flatten().numpy())
    np.testing.assert_allclose(BINARY.mean(logits).flatten(), p, rtol=1e-12)
    x = BINARY.sample(logits.expand(-1, 1, 200, 200), torch.Generator().manual_seed(0))
    assert set(x.unique().tolist()) == {0.0, 1.0}
    assert (np.abs(x.mean((1, 2, 3)).numpy() - p) <= 5 * np.sqrt(p * (1 - p) / 40_000)).all()


def test_outputs_and_channels_are_those_of_app_g() -> None:
    assert (BINARY.channels, BINARY.outputs) == (1, 1) and (COLOUR.channels, COLOUR.outputs) == (3, 100)
    assert (GREY.channels, GREY.outputs) == (1, 30)
