import math

import mpmath
import numpy as np
import pytest
import torch
from scipy.special import expit, logsumexp

from dvaepp.distributions import DiscretizedLogisticMixture

LEVELS = torch.arange(256, dtype=torch.float64) * 2 / 255 - 1


def _make(k: int = 3, dtype: torch.dtype = torch.float64, batch: tuple[int, ...] = (), seed: int = 0):
    g = torch.Generator().manual_seed(seed)
    shape = (*batch, 3, k)
    draw = [torch.randn(s, generator=g, dtype=dtype) for s in ((*batch, k), shape, shape, shape)]
    return DiscretizedLogisticMixture(draw[0], 0.7 * draw[1], draw[2] - 2, draw[3])


def _reference(d: DiscretizedLogisticMixture, x: list[float]) -> float:
    """The mass of one pixel straight from the definition, in high precision."""
    with mpmath.workdps(60):
        total = mpmath.mpf(0)
        weights = [mpmath.exp(w) for w in d.mixture_logits.tolist()]
        for k, weight in enumerate(weights):
            c = [mpmath.tanh(v) for v in d.coefficients[:, k].tolist()]
            shifts = (0, c[0] * x[0], c[1] * x[0] + c[2] * x[1])
            mass = weight / sum(weights)
            for channel in range(3):
                mean = d.means[channel, k].item() + shifts[channel]
                scale = mpmath.exp(max(d.log_scales[channel, k].item(), -7))
                low, high = ((x[channel] + mpmath.mpf(s) / 255 - mean) / scale for s in (-1, 1))
                upper = 1 if x[channel] > 0.999 else 1 / (1 + mpmath.exp(-high))
                lower = 0 if x[channel] < -0.999 else 1 / (1 + mpmath.exp(-low))
                mass *= upper - lower
            total += mass
        return float(mpmath.log(total))


def test_mass_equals_the_definition() -> None:
    d = _make()
    rng = np.random.default_rng(0)
    for _ in range(200):
        x = LEVELS[rng.integers(0, 256, 3)]
        assert d.log_prob(x).item() == pytest.approx(_reference(d, x.tolist()), abs=1e-9)


@pytest.mark.parametrize("level", [0, 40, 255])
def test_green_and_blue_sum_out_over_256_levels(level: int) -> None:
    d = _make()
    pairs = torch.cartesian_prod(LEVELS, LEVELS)
    mass = d.log_prob(torch.cat([LEVELS[level].expand(len(pairs), 1), pairs], -1)).logsumexp(0).exp().item()
    weights = np.exp(d.mixture_logits.numpy() - logsumexp(d.mixture_logits.numpy()))
    mean, scale = d.means[0].numpy(), np.exp(d.log_scales[0].numpy())
    upper = 1.0 if level == 255 else expit((float(LEVELS[level]) + 1 / 255 - mean) / scale)
    lower = 0.0 if level == 0 else expit((float(LEVELS[level]) - 1 / 255 - mean) / scale)
    assert mass == pytest.approx((weights * (upper - lower)).sum(), rel=1e-9)


@pytest.mark.slow
def test_mixture_sums_to_one_over_all_colours() -> None:
    d = _make(k=2)
    pairs = torch.cartesian_prod(LEVELS, LEVELS)
    total = sum(d.log_prob(torch.cat([r.expand(len(pairs), 1), pairs], -1)).exp().sum() for r in LEVELS)
    assert total.item() == pytest.approx(1, abs=1e-9)


def test_samples_have_the_mass_they_should() -> None:
    """Chi-squared on the red channel and on green given red (100 000 draws, rate 1e-3, fixed seed)."""
    d = _make(k=2, seed=3)
    n = 100_000
    x = d.sample((n,), generator=torch.Generator().manual_seed(0))
    assert d.support.check(x).all()
    level = ((x + 1) * 255 / 2).round().long()
    assert torch.allclose(LEVELS[level], x, atol=1e-12)
    # mass of red by summing out nothing: in float64 from the definition of one channel
    w = torch.softmax(d.mixture_logits, -1)
    s = d.log_scales.clamp_min(-7).exp()

    def channel_mass(mean: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
        upper = torch.sigmoid((LEVELS[:, None] + 1 / 255 - mean) / scale)
        lower = torch.sigmoid((LEVELS[:, None] - 1 / 255 - mean) / scale)
        upper[-1], lower[0] = 1, 0
        return upper - lower

    red = (channel_mass(d.means[0], s[0]) * w).sum(-1)
    c = torch.tanh(d.coefficients)
    chosen = level[:, 0] == level[:, 0].mode().values
    r = x[chosen][0, 0]
    posterior = channel_mass(d.means[0], s[0])[level[chosen][0, 0]] * w
    posterior = posterior / posterior.sum()
    green = (channel_mass(d.means[1] + c[0] * r, s[1]) * posterior).sum(-1)
    for counts, mass, total in (
        (torch.bincount(level[:, 0], minlength=256), red, n),
        (torch.bincount(level[chosen, 1], minlength=256), green, int(chosen.sum())),
    ):
        order = mass.argsort(descending=True)
        expected = mass[order] * total
        keep = expected > 10
        observed, expected = counts[order][keep], expected[keep]
        statistic = ((observed - expected) ** 2 / expected).sum()
        degrees = int(keep.sum())
        assert statistic < degrees + 3.3 * math.sqrt(2 * degrees) + 11  # above the 1e-3 quantile


def test_finite_at_the_extremes_in_float32() -> None:
    means = torch.tensor([-50.0, -1.0, 0.0, 1.0, 50.0])
    log_scales = torch.tensor([-30.0, -7.0, 0.0, 5.0, 30.0])
    m, s = (g.reshape(-1, 1, 1).expand(-1, 3, 2).clone() for g in torch.meshgrid(means, log_scales, indexing="ij"))
    m.requires_grad_(), s.requires_grad_()
    d = DiscretizedLogisticMixture(torch.zeros(25, 2), m, s, torch.full((25, 3, 2), 20.0))
    for x in (-1.0, 1 / 255, 1.0):
        log_prob = d.log_prob(torch.full((25, 3), x))
        assert torch.isfinite(log_prob).all()
        assert all(torch.isfinite(g).all() for g in torch.autograd.grad(log_prob.sum(), (m, s)))


def test_channels_of_a_network_are_read_in_order() -> None:
    channels = torch.randn(2, 100, 4, 5, generator=torch.Generator().manual_seed(0))
    d = DiscretizedLogisticMixture.from_channels(channels)
    assert d.batch_shape == (2, 4, 5) and d.event_shape == (3,)
    assert torch.equal(d.mixture_logits[1, 2, 3], channels[1, :10, 2, 3])
    assert torch.equal(d.means[1, 2, 3, 0], channels[1, 10:20, 2, 3])
    assert torch.equal(d.log_scales[1, 2, 3, 0], channels[1, 40:50, 2, 3])
    assert torch.equal(d.coefficients[0, 0, 0, 2], channels[0, 90:, 0, 0])
    assert d.expand((6, 2, 4, 5)).sample().shape == (6, 2, 4, 5, 3)


def test_bad_arguments_are_named() -> None:
    with pytest.raises(ValueError, match=r"means must have shape \(3, 5\)"):
        DiscretizedLogisticMixture(torch.zeros(5), torch.zeros(3, 4), torch.zeros(3, 5), torch.zeros(3, 5))
    with pytest.raises(ValueError, match=r"channels must be \(batch, 10 K, height, width\)"):
        DiscretizedLogisticMixture.from_channels(torch.zeros(2, 99, 4, 4))
    with pytest.raises(ValueError, match="within the support"):
        _make().log_prob(torch.full((3,), 0.1234, dtype=torch.float64))


def test_moments_of_grey_pixels_are_sums_over_levels() -> None:
    g = torch.Generator().manual_seed(0)
    logits, means, log_scales = (torch.randn(2, *s, generator=g, dtype=torch.float64) for s in ((5,), (1, 5), (1, 5)))
    d = DiscretizedLogisticMixture(logits, 0.5 * means, log_scales - 1)
    assert d.event_shape == (1,) and d.batch_shape == (2,)
    weights = np.exp(logits.numpy() - logsumexp(logits.numpy(), axis=-1, keepdims=True))
    for row in range(2):
        m, s = 0.5 * means[row, 0].numpy(), np.exp(log_scales[row, 0].numpy() - 1)
        edges = expit((LEVELS.numpy()[:-1, None] + 1 / 255 - m) / s)
        mass = np.diff(np.concatenate([np.zeros((1, 5)), edges, np.ones((1, 5))]), axis=0) @ weights[row]
        mean = (mass * LEVELS.numpy()).sum()
        assert d.mean[row].item() == pytest.approx(mean, abs=1e-12)
        assert d.variance[row].item() == pytest.approx((mass * (LEVELS.numpy() - mean) ** 2).sum(), abs=1e-12)
    assert d.expand((3, 2)).sample((4,), generator=g).shape == (4, 3, 2, 1)
    with pytest.raises(NotImplementedError, match="average samples instead"):
        _ = _make().mean
    with pytest.raises(ValueError, match=r"means must have shape \(2, 1, 5\) without coefficients"):
        DiscretizedLogisticMixture(logits, torch.zeros(2, 3, 5), log_scales)
