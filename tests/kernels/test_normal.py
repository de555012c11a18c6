"""Normal units, compiled and plain, against float64 and against distributions of torch."""

import pytest
import torch
from torch import Tensor
from torch.distributions import Normal, kl_divergence

from dvaepp.kernels import normal, policy

LAYOUTS = ["rows first", "pixels first", "planes", "a part of wider pixels"]
SHAPES = [(1, 2, 1, 1), (3, 6, 2, 3), (9, 34, 4, 4), (100, 64, 4, 4), (2, 70, 5, 1)]


@pytest.fixture(params=["compiled", "plain"])
def path(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.param == "plain":
        monkeypatch.setenv("DVAEPP_KERNEL", "-normal")
    elif not policy.on("normal"):
        pytest.skip("no C compiler here, or DVAEPP_KERNEL=off")


def _maps(shape: tuple[int, ...], layout: str, scale: float = 1.0, seed: int = 0) -> Tensor:
    """Maps (rows, channels, height, width) that lie in memory in one of several orders."""
    rows, channels, height, width = shape
    found = scale * torch.randn(rows, height, width, channels, generator=torch.Generator().manual_seed(seed))
    if layout == "rows first":
        return found.permute(0, 3, 1, 2)
    if layout == "pixels first":
        return found.permute(1, 2, 0, 3).contiguous().permute(2, 3, 0, 1)
    if layout == "planes":
        return found.permute(0, 3, 1, 2).contiguous()
    wide = torch.cat([found, torch.full_like(found, torch.nan)], -1)
    return wide[..., :channels].permute(0, 3, 1, 2)


def _agree(found: list[Tensor], exact: list[Tensor], tolerance: float) -> None:
    for f, e in zip(found, exact, strict=True):
        assert f.shape == e.shape and torch.isfinite(f).all()
        torch.testing.assert_close(f.double(), e, rtol=tolerance, atol=tolerance * float(e.abs().max()))


@pytest.mark.usefixtures("path")
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("graph", [False, True])
def test_values_and_slopes_equal_float64(shape: tuple[int, ...], layout: str, graph: bool) -> None:
    """To 1e-5 of the largest; a wrong term costs a tenth. `graph`: by expressions that can be differentiated again."""
    half = (shape[0], shape[1] // 2, *shape[2:])
    others = [_maps(half, layout, seed=3), _maps(shape, layout, seed=1)]
    cases = [
        (lambda v, _noise, _p: normal.bounded(v, 5.0), lambda v, _noise, _p: 5 * torch.tanh(v / 5), 4.0),
        (lambda q, noise, _p: normal.sample(q, noise), _sample, 1.0),
        (lambda q, _noise, p: normal.kl(q, p), _kl, 1.0),
    ]
    for found, exact, scale in cases:
        results = []
        for function, dtype in ((found, torch.float32), (exact, torch.float64)):
            q, p = (t.to(dtype).requires_grad_() for t in (_maps(shape, layout, scale), others[1]))
            y = function(q, others[0].to(dtype), p)
            inputs = [q, p] if y.dim() == 1 else [q]
            weights = torch.randn(y.shape, generator=torch.Generator().manual_seed(9)).to(dtype)
            slopes = torch.autograd.grad((weights * y).sum(), inputs, create_graph=graph)
            results.append([t.detach() for t in (y, *slopes)])
        _agree(results[0], results[1], 1e-5)


def _sample(q: Tensor, noise: Tensor, _: Tensor) -> Tensor:
    mean, log_sd = q.chunk(2, 1)
    return mean + log_sd.exp() * noise


def _kl(q: Tensor, _: Tensor, p: Tensor) -> Tensor:
    each = kl_divergence(*(Normal(t.chunk(2, 1)[0], t.chunk(2, 1)[1].exp()) for t in (q, p)))
    return each.flatten(1).sum(1)


@pytest.mark.usefixtures("path")
def test_second_derivatives_are_right() -> None:
    shape, layout = (3, 6, 2, 2), "rows first"
    noise = _maps((3, 3, 2, 2), layout, seed=3)
    for function in (
        lambda v: normal.bounded(v, 5.0),
        lambda q: normal.sample(q, noise),
        lambda q: normal.kl(q, q + 1),
    ):
        results = []
        for double in (False, True):
            v = _maps(shape, layout).to(torch.float64 if double else torch.float32).requires_grad_()
            y = function(v)
            (slope,) = torch.autograd.grad(y.square().sum(), v, create_graph=True)
            results.append(torch.autograd.grad(slope.square().sum(), v)[0])
        torch.testing.assert_close(results[0].double(), results[1], rtol=1e-4, atol=1e-4)


@pytest.mark.usefixtures("path")
@pytest.mark.parametrize("number", [1, 2, 3])
def test_threads_change_nothing(number: int) -> None:
    before = torch.get_num_threads()
    q, p = (_maps((301, 64, 4, 4), "pixels first", seed=seed).requires_grad_() for seed in (0, 1))
    results = []
    try:
        for threads in (1, number):
            torch.set_num_threads(threads)
            value = normal.kl(normal.bounded(q, 5.0), p)
            results.append([value, *torch.autograd.grad(value.sum(), [q, p])])
    finally:
        torch.set_num_threads(before)
    assert all(torch.equal(a, b) for a, b in zip(*results, strict=True))


@pytest.mark.usefixtures("path")
def test_extreme_outputs_are_bounded_and_nothing_hides_what_is_no_number() -> None:
    v = torch.tensor([0.0, -0.0, 1e-30, -1e-6, 80.0, -3e38, torch.inf, torch.nan]).reshape(1, 8, 1, 1)
    y = normal.bounded(v, 5.0).flatten()
    expected = torch.tensor([0.0, -0.0, 1e-30, -1e-6, 5.0, -5.0, 5.0])
    torch.testing.assert_close(y[:-1], expected, rtol=1e-6, atol=0)
    assert y[-1].isnan()
    assert normal.kl(v[:, 6:], v[:, 6:]).isnan().all() and normal.sample(v[:, 6:], v[:, :1]).isnan().all()


@pytest.mark.usefixtures("path")
def test_other_types_shapes_and_noise_with_a_gradient() -> None:
    q = torch.randn(4, 6, generator=torch.Generator().manual_seed(0))
    noise = torch.ones(4, 3, requires_grad=True)
    (slope,) = torch.autograd.grad(normal.sample(q, noise).sum(), noise)
    torch.testing.assert_close(slope, q[:, 3:].exp())
    maps = q[..., None, None].requires_grad_()
    (slope,) = torch.autograd.grad(normal.sample(maps, noise[..., None, None]).sum(), noise)
    torch.testing.assert_close(slope, q[:, 3:].exp())
    (slope,) = torch.autograd.grad(normal.kl(maps, torch.zeros_like(maps)).sum(), maps)
    torch.testing.assert_close(slope[:, :3], q[:, :3, None, None])
    torch.testing.assert_close(normal.kl(q.double(), q.double() * 0).float(), normal.kl(q, q * 0))
    assert normal.kl(maps[:0], maps[:0]).shape == (0,)
