"""Laws every smoothing obeys, run on every member the registry finds.

A member `dvaepp/smoothing/<stem>.py` comes with `tests/smoothing/test_<stem>.py`, which names instances to run on:
EXAMPLES, and for an overlapping member NEAR_BINARY, one close to the limit.
"""

import importlib
import math
from dataclasses import fields, replace

import pytest
import torch
from scipy.integrate import quad
from torch import Tensor

from dvaepp.numerics import uniform
from dvaepp.smoothing import MEMBERS, Overlapping, Smoothing

DRAWS = 1_000_000
FAILURE_RATE = 1e-3  # of one statistical assertion under a correct program; seeds are fixed, so it never flickers


def _examples(kind: type[Smoothing]) -> list:
    params = []
    for stem, member in MEMBERS.items():
        if issubclass(member, kind):
            module = importlib.import_module(f"tests.smoothing.test_{stem}")
            assert module.EXAMPLES, f"{module.__name__} names no EXAMPLES"
            params += [pytest.param(e, id=repr(e)) for e in module.EXAMPLES]
    return params


SMOOTHINGS = _examples(Smoothing)
OVERLAPPING = _examples(Overlapping)
NEAR_BINARY = [
    pytest.param(importlib.import_module(f"tests.smoothing.test_{stem}").NEAR_BINARY, id=stem)
    for stem, member in MEMBERS.items()
    if issubclass(member, Overlapping)
]
overlapping = pytest.mark.parametrize("smoothing", OVERLAPPING)
every = pytest.mark.parametrize("smoothing", SMOOTHINGS)
both_ways = pytest.mark.parametrize("way", ["sample", "sample_components"])
EVERY_WAY = [pytest.param("sample", *p.values, id=f"sample-{p.id}") for p in SMOOTHINGS] + [
    pytest.param("sample_components", *p.values, id=f"sample_components-{p.id}") for p in OVERLAPPING
]
every_way = pytest.mark.parametrize("way, smoothing", EVERY_WAY)


def _grid(dtype: torch.dtype = torch.float64) -> tuple[Tensor, Tensor]:
    logits = torch.tensor([-30.0, -6.0, -1.5, -0.3, 0.0, 0.8, 2.0, 9.0, 30.0], dtype=dtype)
    rho = torch.tensor([1e-6, 0.01, 0.2, 0.43, 0.5, 0.77, 0.98, 1 - 1e-6], dtype=dtype)
    return tuple(g.reshape(-1) for g in torch.meshgrid(logits, rho, indexing="ij"))


def _noise(seed: int, n: int = DRAWS, dtype: torch.dtype = torch.float32) -> Tensor:
    return uniform(n, generator=torch.Generator().manual_seed(seed), dtype=dtype)


@overlapping
@pytest.mark.parametrize("logit", [-2.0, 0.4])
def test_density_integrates_to_one(smoothing: Overlapping, logit: float) -> None:
    center = float(smoothing.center)
    low, high = _ends(smoothing)

    def density(zeta: float) -> float:
        z, logits = torch.tensor(zeta, dtype=torch.float64), torch.tensor(logit, dtype=torch.float64)
        return smoothing.log_prob(z, logits).exp().item()

    mass = sum(quad(density, a, b, limit=400)[0] for a, b in ((low, 0.0), (0.0, center), (center, 1.0), (1.0, high)))
    assert mass == pytest.approx(1, abs=1e-7)


@overlapping
def test_cdf_of_a_sample_is_rho(smoothing: Overlapping) -> None:
    logits, rho = _grid()
    zeta = smoothing.sample(logits, rho)
    # where the density has a pole, the rounding of ζ alone moves the CDF: ρ lies between its neighbours' values
    low, high = (torch.nextafter(zeta, torch.tensor(end, dtype=zeta.dtype)) for end in _ends(smoothing))
    assert (smoothing.cdf(low, logits) - 1e-12 <= rho).all()
    assert (rho <= smoothing.cdf(high, logits) + 1e-12).all()


@overlapping
@both_ways
def test_mirror_symmetry(smoothing: Overlapping, way: str) -> None:
    logits, rho = _grid()
    apart = rho != torch.sigmoid(-logits)  # at ρ = 1-μ components may take either z
    logits, rho = logits[apart].requires_grad_(), rho[apart]
    zeta = getattr(smoothing, way)(logits, rho)
    mirrored = getattr(smoothing, way)(-logits, 1 - rho)
    torch.testing.assert_close(mirrored, 2 * smoothing.center - zeta, rtol=0, atol=1e-9)
    (slope,) = torch.autograd.grad(zeta.sum(), logits)
    (mirrored_slope,) = torch.autograd.grad(mirrored.sum(), logits)
    torch.testing.assert_close(mirrored_slope, -slope, rtol=1e-6, atol=1e-12)


@overlapping
@both_ways
def test_mean_of_nu_is_mu(smoothing: Overlapping, way: str) -> None:
    """E_q(ζ|x)[ν(x, ζ)] = μ(x) (Sec. 5), within 5 standard errors at 1e6 draws."""
    logits = torch.full((DRAWS,), -1.2)
    zeta = getattr(smoothing, way)(logits, _noise(3))
    nu = torch.sigmoid(logits + smoothing.log_ratio(zeta)).double()
    mu = 1 / (1 + math.exp(1.2))
    assert (nu.mean() - mu).abs() < 5 * nu.std() / math.sqrt(DRAWS)


@overlapping
@both_ways
def test_samples_follow_the_cdf(smoothing: Overlapping, way: str) -> None:
    """Dvoretzky-Kiefer-Wolfowitz: sup |F_n - F| <= sqrt(log(2/α) / 2n) with probability 1 - α."""
    bound = math.sqrt(math.log(2 / FAILURE_RATE) / (2 * DRAWS))
    logits = torch.tensor(0.4, dtype=torch.float64)
    zeta = getattr(smoothing, way)(logits, _noise(7, dtype=torch.float64)).sort().values

    def distance(values: Tensor) -> float:
        f = smoothing.cdf(values.clamp(*_ends(smoothing)), logits)
        steps = torch.arange(DRAWS + 1, dtype=torch.float64) / DRAWS
        return torch.maximum((f - steps[:-1]).abs().max(), (f - steps[1:]).abs().max()).item()

    assert distance(zeta) <= bound
    assert distance(zeta + 0.005) > bound, "the test must see a shift of 0.005"


def _ends(smoothing: Overlapping) -> tuple[float, float]:
    bounded = not bool(smoothing.support.check(torch.tensor(-1.0)))
    return (0.0, 1.0) if bounded else (-math.inf, math.inf)


@pytest.mark.parametrize("smoothing", NEAR_BINARY)
@both_ways
def test_limit_is_the_binary_unit(smoothing: Overlapping, way: str) -> None:
    logits, rho = _grid(torch.float32)
    z = MEMBERS["binary"]().sample(logits, rho)
    away = (rho - torch.sigmoid(-logits)).abs() > 1e-3  # at ρ = 1-μ the limit is a step
    assert away.sum() > 40
    assert (getattr(smoothing, way)(logits, rho) - z)[away].abs().max() < 2e-3


@overlapping
def test_gradients_equal_finite_differences(smoothing: Overlapping) -> None:
    logits, rho = _grid()
    logits.requires_grad_()
    (slope,) = torch.autograd.grad(smoothing.sample(logits, rho).sum(), logits)
    zeta = smoothing.sample(logits, rho).detach()
    # finite differences resolve neither the near-steps between two narrow modes nor a pole
    keep = (slope < 20) & (logits.abs() < 7) & ((zeta - 0.5).abs() - 0.5).abs().gt(1e-3)
    assert keep.sum() >= 15
    logits, rho, zeta = logits.detach()[keep].requires_grad_(), rho[keep], zeta[keep].requires_grad_()
    assert torch.autograd.gradcheck(lambda x: smoothing.sample(x, rho), logits, eps=1e-6, atol=1e-6)
    for function in (smoothing.log_prob, smoothing.cdf):
        assert torch.autograd.gradcheck(function, (zeta, logits), eps=1e-7, atol=1e-5)
    assert torch.autograd.gradcheck(smoothing.log_ratio, zeta, eps=1e-7, atol=1e-5)


def _parameters(smoothing: Smoothing) -> dict[str, float | Tensor]:
    return {f.name: getattr(smoothing, f.name) for f in fields(smoothing) if f.name != "validate_args"}


LEARNABLE = [param for param in SMOOTHINGS if _parameters(param.values[0])]


@pytest.mark.parametrize("smoothing", LEARNABLE)
@pytest.mark.parametrize("function", ["sample", "log_prob", "log_ratio"])
def test_parameter_gradients_equal_finite_differences(smoothing: Smoothing, function: str) -> None:
    """Every parameter can be learned: 1e-4 relative in float64, against central differences of the function itself."""
    if not hasattr(smoothing, function):
        pytest.skip(f"{type(smoothing).__name__} has no {function}")
    logits, rho = _grid()
    zeta = smoothing.sample(logits, rho)
    at_an_end = ((zeta - 0.5).abs() - 0.5).abs() < 1e-3  # differences resolve neither a pole nor a spike
    keep = (logits.abs() < 7) & ((rho - torch.sigmoid(-logits)).abs() > 0.02) & ~at_an_end
    logits, rho, zeta = logits[keep], rho[keep], zeta[keep]

    def value(**changed: float | Tensor) -> Tensor:
        member = replace(smoothing, **changed)
        if function == "sample":
            return member.sample(logits, rho)
        return member.log_prob(zeta, logits) if function == "log_prob" else member.log_ratio(zeta)

    for name, number in _parameters(smoothing).items():
        per_point = torch.as_tensor(number, dtype=torch.float64).reshape(-1)[:1].expand(len(rho)).clone()
        per_point.requires_grad_()
        (slope,) = torch.autograd.grad(value(**{name: per_point}).sum(), per_point)
        step = 1e-5 * max(1.0, abs(per_point[0].item()))
        above, below = (value(**{name: (per_point + sign * step).detach()}) for sign in (1, -1))
        expected = (above - below) / (2 * step)
        assert expected.abs().max() > 1e-6, f"these points do not depend on {name}"
        torch.testing.assert_close(slope, expected, rtol=1e-4, atol=1e-8 * expected.abs().max().item() + 1e-9)


@pytest.mark.parametrize("smoothing", LEARNABLE)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_parameter_gradients_stay_finite_at_extremes(smoothing: Smoothing, dtype: torch.dtype) -> None:
    logits = torch.tensor([-math.inf, -100.0, -17.0, 0.0, 17.0, 100.0, math.inf], dtype=dtype)
    rho = torch.tensor([0.0, 1e-30, 1e-7, 0.3, 0.5, 0.999, 1.0], dtype=dtype)
    logits, rho = (g.reshape(-1) for g in torch.meshgrid(logits, rho, indexing="ij"))
    for name, number in _parameters(smoothing).items():
        learned = torch.as_tensor(number, dtype=dtype).reshape(-1)[:1].expand(len(rho)).clone().requires_grad_()
        zeta = replace(smoothing, **{name: learned}).sample(logits, rho)
        (slope,) = torch.autograd.grad(zeta.sum(), learned)
        assert torch.isfinite(slope).all(), name


@overlapping
def test_a_learned_parameter_may_change_in_place(smoothing: Overlapping) -> None:
    """An optimizer changes a tensor where it lies: nothing about its old value may be kept."""
    logits, rho = _grid()
    name, number = next(iter(_parameters(smoothing).items()))
    number = torch.as_tensor(number, dtype=torch.float64).reshape(-1)[0]
    learned = number.clone()
    member = replace(smoothing, **{name: learned})
    member.sample(logits, rho)
    learned.mul_(2.5)
    expected = replace(smoothing, **{name: 2.5 * number.item()}).sample(logits, rho)
    torch.testing.assert_close(member.sample(logits, rho), expected, rtol=1e-9, atol=1e-12)


@overlapping
def test_log_density_and_log_ratio_agree(smoothing: Overlapping) -> None:
    logits, rho = _grid()
    zeta = smoothing.sample(logits, rho)
    one, zero = smoothing.log_density(zeta, 1), smoothing.log_density(zeta, torch.zeros_like(zeta))
    torch.testing.assert_close(smoothing.log_ratio(zeta), one - zero, rtol=1e-9, atol=1e-9)


@overlapping
def test_moments_equal_quadrature(smoothing: Overlapping) -> None:
    low, high = _ends(smoothing)
    bend = min(1.0, float(smoothing.center))

    def integral(f) -> float:
        def integrand(zeta: float) -> float:
            z = torch.tensor(zeta, dtype=torch.float64)
            return f(zeta) * smoothing.log_density(z, 0).exp().item()

        parts = sorted({low, 0.0, bend / 50, bend, high})
        return sum(quad(integrand, a, b, limit=400)[0] for a, b in zip(parts, parts[1:], strict=False))

    mean, variance = smoothing.moments0()
    expected = integral(lambda zeta: zeta)
    assert float(mean) == pytest.approx(expected, abs=1e-7)
    assert float(variance) == pytest.approx(integral(lambda zeta: (zeta - expected) ** 2), rel=1e-6)


@every_way
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16, torch.bfloat16])
def test_values_and_gradients_stay_finite_at_extremes(way: str, smoothing: Smoothing, dtype: torch.dtype) -> None:
    logits = torch.tensor([-math.inf, -1e4, -100.0, -17.0, 0.0, 17.0, 100.0, 1e4, math.inf], dtype=dtype)
    rho = torch.tensor([0.0, 1e-30, 1e-7, 0.3, 0.5, 0.999, 1.0], dtype=dtype)
    logits, rho = (g.reshape(-1) for g in torch.meshgrid(logits, rho, indexing="ij"))
    logits.requires_grad_()
    zeta = getattr(smoothing, way)(logits, rho)
    assert zeta.dtype == dtype and torch.isfinite(zeta).all()
    if not zeta.requires_grad:  # Binary
        return
    (slope,) = torch.autograd.grad(zeta.sum(), logits)
    assert torch.isfinite(slope).all()
    assert (slope[torch.isinf(logits)] == 0).all()
    if isinstance(smoothing, Overlapping) and dtype in (torch.float32, torch.float64):
        zeta = zeta.detach().requires_grad_()
        for value in (smoothing.log_ratio(zeta), smoothing.log_prob(zeta, logits)):
            grads = torch.autograd.grad(value.sum(), (zeta, logits), allow_unused=True)
            assert all(torch.isfinite(g).all() for g in grads if g is not None)


@overlapping
@both_ways
def test_infinite_logits_draw_from_the_certain_component(smoothing: Overlapping, way: str) -> None:
    rho = torch.linspace(0.01, 0.99, 25, dtype=torch.float64)
    for sign in (-1.0, 1.0):
        certain = getattr(smoothing, way)(torch.full_like(rho, sign * math.inf), rho)
        nearly = getattr(smoothing, way)(torch.full_like(rho, sign * 60.0), rho)
        torch.testing.assert_close(certain, nearly, rtol=1e-9, atol=1e-9)


@every_way
def test_shapes_broadcast(way: str, smoothing: Smoothing) -> None:
    logits, rho = torch.zeros(3, 1, requires_grad=True), torch.full((5, 1, 2), 0.3)
    zeta = getattr(smoothing, way)(logits, rho)
    assert zeta.shape == (5, 3, 2)
    torch.testing.assert_close(zeta[4, 2, 1], getattr(smoothing, way)(logits[0, 0], rho[0, 0, 0]))


@every_way
def test_bad_input_is_named(way: str, smoothing: Smoothing) -> None:
    ok = torch.full((3,), 0.5)
    with pytest.raises(ValueError, match=r"rho must be in \[0, 1\], got 1.5"):
        getattr(smoothing, way)(ok, torch.tensor([0.1, 1.5, 0.2]))
    with pytest.raises(ValueError, match=r"rho must be in \[0, 1\], got nan"):
        getattr(smoothing, way)(ok, torch.tensor([0.1, math.nan, 0.2]))
    with pytest.raises(ValueError, match="logits must be anything but NaN, got nan"):
        getattr(smoothing, way)(torch.tensor([0.0, math.nan, 1.0]), ok)
    with pytest.raises(ValueError, match=r"shapes do not broadcast: logits \(3,\), rho \(4,\)"):
        getattr(smoothing, way)(ok, torch.full((4,), 0.5))


@overlapping
@both_ways
def test_second_derivatives_are_refused_not_wrong(smoothing: Overlapping, way: str) -> None:
    logits = torch.zeros(2, requires_grad=True)
    zeta = getattr(smoothing, way)(logits, torch.tensor([0.2, 0.6]))
    (slope,) = torch.autograd.grad(zeta.square().sum(), logits, create_graph=True)
    with pytest.raises(RuntimeError):
        slope.sum().backward()


# Sampling by components.


def _inner_points(smoothing: Overlapping) -> tuple[Tensor, Tensor, Tensor]:
    """Logits, noise and ζ away from where a density has a pole or no digits."""
    logits, rho = _grid()
    zeta = smoothing.sample_components(logits, rho)
    keep = (logits.abs() < 7) & (smoothing.log_prob(zeta, logits).abs() < 7)
    assert keep.sum() >= 15
    return logits[keep], rho[keep], zeta[keep]


@overlapping
def test_components_carry_the_implicit_derivative(smoothing: Overlapping) -> None:
    """∂ζ/∂logit = -∂F/∂logit / q(ζ), with differences of the CDF: 1e-6 relative in float64."""
    logits, rho, zeta = _inner_points(smoothing)
    leaf = logits.clone().requires_grad_()
    (slope,) = torch.autograd.grad(smoothing.sample_components(leaf, rho).sum(), leaf)
    change = (smoothing.cdf(zeta, logits + 1e-5) - smoothing.cdf(zeta, logits - 1e-5)) / 2e-5
    expected = -change / smoothing.log_prob(zeta, logits).exp()
    torch.testing.assert_close(slope, expected, rtol=1e-6, atol=1e-6 * expected.abs().max().item())


@overlapping
def test_components_carry_the_derivative_in_parameters(smoothing: Overlapping) -> None:
    """∂ζ/∂θ = -∂F/∂θ / q(ζ), with differences of the CDF: 1e-5 relative in float64."""
    logits, rho, zeta = _inner_points(smoothing)
    for name, number in _parameters(smoothing).items():
        theta = torch.as_tensor(number, dtype=torch.float64).reshape(-1)[:1].expand(len(rho)).clone()
        learned = replace(smoothing, **{name: theta.requires_grad_()})
        (slope,) = torch.autograd.grad(learned.sample_components(logits, rho).sum(), theta)
        step = 1e-5 * max(1.0, abs(theta[0].item()))
        above, below = (replace(smoothing, **{name: theta.detach() + s}).cdf(zeta, logits) for s in (step, -step))
        expected = -(above - below) / (2 * step) / smoothing.log_prob(zeta, logits).exp()
        torch.testing.assert_close(slope, expected, rtol=1e-5, atol=1e-6 * expected.abs().max().item())


def _gentle(smoothing: Overlapping) -> bool:
    """Whether slopes are bounded by ordinary numbers, so that their mean can be taken: no empty gap in the middle."""
    center = torch.as_tensor(smoothing.center, dtype=torch.float64)
    return smoothing.log_prob(center, torch.zeros_like(center)).item() > -1.5


@pytest.mark.parametrize("smoothing", [param for param in OVERLAPPING if _gentle(param.values[0])])
def test_gradient_by_components_is_unbiased(smoothing: Overlapping) -> None:
    """E[∂ζ²/∂logit] = μ (1-μ) (E₁[ζ²] - E₀[ζ²]) within 5 standard errors at 1e6 draws; a slope at fixed z is not."""
    logits = torch.full((DRAWS,), -0.7, dtype=torch.float64, requires_grad=True)
    rho = _noise(11, dtype=torch.float64)
    zeta = smoothing.sample_components(logits, rho)
    (slope,) = torch.autograd.grad(zeta.square().sum(), logits)
    mu, mean = 1 / (1 + math.exp(0.7)), float(smoothing.moments0().mean)
    mirrored = 2 * float(smoothing.center) - mean
    expected = mu * (1 - mu) * (mirrored**2 - mean**2)  # the variances of both components are the same
    error = 5 * slope.std().item() / math.sqrt(DRAWS)
    assert abs(slope.mean().item() - expected) < error
    with torch.no_grad():
        nudged = smoothing.sample_components(logits + 1e-6, rho)
    same_z = (nudged - zeta).abs() < 0.01
    path = torch.where(same_z, (nudged - zeta) / 1e-6, 0.0) * 2 * zeta
    assert abs(path.mean().item() - expected) > error, "the test must see that z itself reacts"


@overlapping
def test_float32_slopes_by_components_equal_float64(smoothing: Overlapping) -> None:
    """To 1e-3 at the 99th percentile of 20 000 draws, where the slope is above 1e-6 of its largest value."""
    generator = torch.Generator().manual_seed(5)
    logits, rho = 4 * torch.randn(20_000, generator=generator), uniform(20_000, generator=generator)
    slopes = []
    for dtype in (torch.float32, torch.float64):
        leaf = logits.to(dtype, copy=True).requires_grad_()
        (slope,) = torch.autograd.grad(smoothing.sample_components(leaf, rho.to(dtype)).sum(), leaf)
        slopes.append(slope.double())
    single, double = slopes
    seen = double > 1e-6 * double.max()
    assert ((single - double).abs() / double)[seen].quantile(0.99) < 1e-3


def test_a_member_without_a_quantile_is_drawn_by_search() -> None:
    """A new member states r(ζ|0) and its CDF, and can be sampled by components at once."""

    class Plain(MEMBERS["exponential"]):
        draw0, slope0, _invert = Overlapping.draw0, Overlapping.slope0, Overlapping._invert

    logits, rho = _grid()
    logits = logits.requires_grad_()
    results = [member(3.0).sample_components(logits, rho) for member in (Plain, MEMBERS["exponential"])]
    torch.testing.assert_close(*results)
    torch.testing.assert_close(*(torch.autograd.grad(zeta.sum(), logits)[0] for zeta in results))


@every
def test_draw_is_one_of_the_ways_to_sample(smoothing: Smoothing) -> None:
    """Models train with `draw`: the inverse CDF where it is closed, components where it would be searched for."""
    logits, rho = _grid()
    searched = isinstance(smoothing, Overlapping) and type(smoothing)._invert is Overlapping._invert
    expected = smoothing.sample_components(logits, rho) if searched else smoothing.sample(logits, rho)
    assert torch.equal(smoothing.draw(logits, rho), expected)


# Functional transforms and compilation.


@overlapping
@both_ways
def test_vmap_and_grad_equal_the_same_without_them(smoothing: Overlapping, way: str) -> None:
    """Gradients of each row by itself, with noise of its own and with noise that all share."""
    logits, rho = (part.reshape(9, 8) for part in _grid())
    quiet = replace(smoothing, validate_args=False)

    def total(row: Tensor, noise: Tensor) -> Tensor:
        zeta = getattr(quiet, way)(row, noise)
        return (zeta * zeta).sum() + quiet.log_prob(zeta.detach(), row).sum()

    leaf = logits.clone().requires_grad_()
    (expected,) = torch.autograd.grad(sum(total(*pair) for pair in zip(leaf, rho, strict=True)), leaf)
    torch.testing.assert_close(torch.func.vmap(torch.func.grad(total))(logits, rho), expected)
    shared = torch.func.vmap(getattr(quiet, way), (0, None))(logits, rho[0])
    torch.testing.assert_close(shared, getattr(quiet, way)(logits, rho[0]))
    columns = torch.func.vmap(getattr(quiet, way), (1, 1), 1)(logits, rho)
    torch.testing.assert_close(columns, getattr(quiet, way)(logits, rho))


@overlapping
@both_ways
def test_second_derivatives_by_functional_transforms_are_refused_not_wrong(smoothing: Overlapping, way: str) -> None:
    quiet = replace(smoothing, validate_args=False)
    square = lambda logit: getattr(quiet, way)(logit, torch.tensor(0.3)) ** 2  # noqa: E731
    with pytest.raises(RuntimeError):
        torch.func.grad(torch.func.grad(square))(torch.tensor(0.4))
