import itertools
import math
from collections.abc import Callable

import pytest
import torch
from scipy.integrate import quad
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


def test_probs_are_another_way_to_give_logits() -> None:
    probs = torch.tensor([0.0, 0.2, 0.5, 1.0])
    q = SmoothedBernoulli(probs=probs, smoothing=Exponential(8.0))
    torch.testing.assert_close(q.probs, probs)
    assert torch.equal(q.logits, torch.logit(probs))
    with pytest.raises(ValueError, match="give either logits or probs"):
        SmoothedBernoulli(smoothing=Exponential(8.0))
    with pytest.raises(ValueError, match="give either logits or probs"):
        SmoothedBernoulli(torch.zeros(1), Exponential(8.0), probs=torch.zeros(1))
    with pytest.raises(ValueError, match=r"probs must be in \[0, 1\], got 1.5"):
        SmoothedBernoulli(probs=torch.tensor([1.5]), smoothing=Exponential(8.0))
    with pytest.raises(ValueError, match="smoothing must be an Overlapping smoothing"):
        SmoothedBernoulli(probs=probs)


def _density(zeta: float, mu: float, beta: float) -> float:
    """q(ζ) of the exponential smoothing as App. A prints it."""
    z = (1 - math.exp(-beta)) / beta
    return ((1 - mu) * math.exp(-beta * zeta) + mu * math.exp(beta * (zeta - 1))) / z


def _integral(function: Callable[[float], float]) -> float:
    return sum(quad(function, a, b, epsabs=1e-13, epsrel=1e-12, limit=200)[0] for a, b in ((0, 0.5), (0.5, 1)))


CASES = list(itertools.product([-6.0, -1.0, 0.0, 0.3, 4.0], [0.01, 1.0, 8.0, 30.0]))


@pytest.mark.parametrize(("logit", "beta"), CASES)
def test_entropy_and_kl_equal_quadrature(logit: float, beta: float) -> None:
    mu = 1 / (1 + math.exp(-logit))
    q = SmoothedBernoulli(torch.tensor([logit], dtype=torch.float64), Exponential(beta))
    entropy = _integral(lambda zeta: -_density(zeta, mu, beta) * math.log(_density(zeta, mu, beta)))
    assert q.entropy().item() == pytest.approx(entropy, abs=1e-9)
    for other in (-3.0, 0.0, 2.0):
        nu = 1 / (1 + math.exp(-other))
        p = SmoothedBernoulli(torch.tensor([other], dtype=torch.float64), Exponential(beta))
        expected = _integral(
            lambda zeta, nu=nu: _density(zeta, mu, beta) * math.log(_density(zeta, mu, beta) / _density(zeta, nu, beta))
        )
        assert kl.kl_divergence(q, p).item() == pytest.approx(expected, abs=1e-9)


def test_kl_approaches_that_of_bernoulli_and_is_zero_for_equals() -> None:
    """Sharp smoothings lose nothing of z: KL of the mixtures -> KL of the Bernoullis (data processing, App. D)."""
    a, b = torch.tensor([-2.0, 0.5, 3.0]), torch.tensor([1.0, 0.4, -1.0])
    exact = kl.kl_divergence(torch.distributions.Bernoulli(logits=a), torch.distributions.Bernoulli(logits=b))
    found = [kl.kl_divergence(*(SmoothedBernoulli(x, Exponential(beta)) for x in (a, b))) for beta in (4.0, 12.0, 60.0)]
    assert all((first <= second + 1e-6).all() for first, second in itertools.pairwise([*found, exact]))
    torch.testing.assert_close(found[-1], exact, atol=1e-6, rtol=1e-5)
    assert kl.kl_divergence(_make(), _make()).abs().max() == 0


def test_entropy_and_kl_pass_gradients_and_stay_finite() -> None:
    """Gradients against finite differences; certain units (infinite logits) have finite values and zero gradients."""
    logits = torch.tensor([-1.0, 0.0, 2.0], dtype=torch.float64, requires_grad=True)
    beta = torch.tensor([2.0, 8.0, 20.0], dtype=torch.float64, requires_grad=True)
    other = torch.tensor([0.5, -0.5, 1.0], dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda a, b: SmoothedBernoulli(a, Exponential(b)).entropy(), (logits, beta))
    assert torch.autograd.gradcheck(
        lambda a, b, c: kl.kl_divergence(*(SmoothedBernoulli(x, Exponential(b)) for x in (a, c))), (logits, beta, other)
    )
    certain = torch.tensor([math.inf, -math.inf, 100.0], requires_grad=True)
    q = SmoothedBernoulli(certain, Exponential(8.0))
    entropy = q.entropy()
    (grad,) = torch.autograd.grad(entropy.sum(), certain)
    assert torch.isfinite(entropy).all() and torch.isfinite(grad).all()
    assert torch.isfinite(kl.kl_divergence(q, SmoothedBernoulli(torch.zeros(3), Exponential(8.0)))).all()


def test_what_has_no_closed_form_is_refused_with_the_way_out() -> None:
    q = SmoothedBernoulli(torch.zeros(3), Logistic(0.1))
    with pytest.raises(NotImplementedError, match="Logistic has no entropy and no KL .* average log_prob over samples"):
        q.entropy()
    with pytest.raises(NotImplementedError, match="Logistic has no entropy"):
        kl.kl_divergence(q, SmoothedBernoulli(torch.ones(3), Logistic(0.1)))
    with pytest.raises(NotImplementedError, match=r"not of Exponential\(beta=8.0\) and Exponential\(beta=9.0\)"):
        kl.kl_divergence(_make(), SmoothedBernoulli(torch.zeros(4, 3), Exponential(9.0)))
    with pytest.raises(NotImplementedError, match="not of Exponential"):
        kl.kl_divergence(_make(), SmoothedBernoulli(torch.zeros(4, 3), Logistic(0.1)))


def test_independent_units_add_up() -> None:
    q, p = (Independent(SmoothedBernoulli(torch.full((4, 3), x), Exponential(8.0)), 1) for x in (0.3, -1.0))
    torch.testing.assert_close(kl.kl_divergence(q, p), kl.kl_divergence(q.base_dist, p.base_dist).sum(-1))
    torch.testing.assert_close(q.entropy(), q.base_dist.entropy().sum(-1))


def test_whole_logits_are_numbers_like_others() -> None:
    """Samples and moments in the type of such logits would be whole numbers, too, nearly all of them 0."""
    logits = torch.tensor([0, 1, -2])
    found, expected = (SmoothedBernoulli(given, Exponential(8.0)) for given in (logits, logits.float()))
    samples = [q.rsample((4,), torch.Generator().manual_seed(0)) for q in (found, expected)]
    assert torch.equal(*samples) and torch.equal(found.mean, expected.mean)
    assert torch.equal(found.log_prob(samples[0]), expected.log_prob(samples[0]))
