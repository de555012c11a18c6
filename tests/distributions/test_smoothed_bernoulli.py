import math

import pytest
import torch
from torch.distributions import Independent, constraints, kl

from dvaepp.distributions import SmoothedBernoulli
from dvaepp.smoothing import Concrete, Exponential, Logistic


def _make(shape: tuple[int, ...] = (4, 3), **kwargs: bool) -> SmoothedBernoulli:
    logits = torch.linspace(-3, 3, math.prod(shape)).reshape(shape)
    return SmoothedBernoulli(logits=logits.requires_grad_(), smoothing=Exponential(8.0), **kwargs)


def test_shapes_follow_torch() -> None:
    q = _make()
    assert q.batch_shape == (4, 3) and q.event_shape == () and q.has_rsample
    assert q.rsample((5, 2)).shape == (5, 2, 4, 3)
    wide = q.expand((7, 4, 3))
    assert wide.batch_shape == (7, 4, 3) and wide.log_prob(wide.sample()).shape == (7, 4, 3)
    assert Independent(q, 1).log_prob(q.sample()).shape == (4,)
    per_unit = SmoothedBernoulli(torch.zeros(2, 1), Exponential(torch.tensor([4.0, 8.0, 12.0])))
    assert per_unit.batch_shape == (2, 3) and per_unit.rsample((6,)).shape == (6, 2, 3)
    assert q.support is constraints.unit_interval
    assert SmoothedBernoulli(torch.zeros(1), Logistic(0.1)).support is constraints.real


def test_rsample_passes_gradients_and_sample_does_not() -> None:
    q = _make()
    (grad,) = torch.autograd.grad(q.rsample((10,)).sum(), q.logits)
    assert (grad > 0).all()
    assert not q.sample().requires_grad


def test_noise_is_the_generators() -> None:
    q = _make()
    a, b = (q.rsample((2,), generator=torch.Generator().manual_seed(5)) for _ in range(2))
    assert torch.equal(a, b)


def test_mean_and_variance_within_five_standard_errors() -> None:
    q = _make((3,))
    n = 400_000
    zeta = q.sample((n,), generator=torch.Generator().manual_seed(1)).double()
    assert ((zeta.mean(0) - q.mean).abs() < 5 * zeta.std(0) / n**0.5).all()
    spread = (zeta - zeta.mean(0)).square()
    assert ((spread.mean(0) - q.variance).abs() < 5 * spread.std(0) / n**0.5).all()


def test_icdf_inverts_cdf_and_reaches_the_ends() -> None:
    q = SmoothedBernoulli(torch.linspace(-2, 2, 5, dtype=torch.float64), Logistic(0.1))
    rho = torch.linspace(0.1, 0.9, 5, dtype=torch.float64)
    torch.testing.assert_close(q.cdf(q.icdf(rho)), rho)
    ends = q.icdf(torch.tensor([0.0, 0.0, 0.5, 1.0, 1.0], dtype=torch.float64))
    assert ends[[0, 1]].tolist() == [-math.inf] * 2 and ends[[3, 4]].tolist() == [math.inf] * 2


def test_posterior_logits_are_bayes_rule() -> None:
    """ν = μ r(ζ|1) / q(ζ|x) (Sec. 5)."""
    smoothing = Exponential(5.0)
    q = SmoothedBernoulli(torch.tensor([-1.0, 0.5], dtype=torch.float64), smoothing)
    zeta = torch.tensor([0.2, 0.9], dtype=torch.float64)
    nu = q.probs * smoothing.log_density(zeta, 1).exp() / q.log_prob(zeta).exp()
    torch.testing.assert_close(torch.sigmoid(q.posterior_logits(zeta)), nu)


def test_bad_arguments_are_named() -> None:
    with pytest.raises(ValueError, match="smoothing must be an Overlapping smoothing"):
        SmoothedBernoulli(torch.zeros(3), Concrete(0.5))
    with pytest.raises(ValueError, match="logits must be anything but NaN"):
        SmoothedBernoulli(torch.tensor([math.nan]), Exponential(8.0))
    with pytest.raises(ValueError, match="within the support"):
        _make().log_prob(torch.full((4, 3), 1.5))
    with pytest.raises(ValueError, match=r"value must be in \[0, 1\]"):
        _make().icdf(torch.full((4, 3), -0.1))
    with pytest.raises(ValueError, match=r"shapes do not broadcast: logits \(2,\), beta \(3,\)"):
        SmoothedBernoulli(torch.zeros(2), Exponential(torch.full((3,), 8.0)))
    _make(validate_args=False).log_prob(torch.full((4, 3), 1.5))
    infinite = SmoothedBernoulli(torch.tensor([math.inf]), Exponential(8.0))
    assert torch.isfinite(infinite.log_prob(infinite.sample())).all()


def test_no_closed_form_kl_is_claimed() -> None:
    with pytest.raises(NotImplementedError):  # torch's own answer where no KL is registered for a pair
        kl.kl_divergence(_make(), _make())
