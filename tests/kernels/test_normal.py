"""normal.c: samples and KLs in float32 against torch.distributions in float64, and against the plain form."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.distributions import Normal, kl_divergence

from dvaepp.kernels import normal

SHAPES = [(100, 64, 4, 4), (3, 10, 2, 3), (1, 2), (7, 40), (5, 34, 1, 1)]


@pytest.fixture(autouse=True)
def _needs_a_compiler() -> None:
    if normal._compiled() is None:
        pytest.skip("no C compiler here: the plain form is tested in test_dvae.py")


def _random(shape: tuple[int, ...], seed: int, scale: float = 3.0) -> Tensor:
    return scale * torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def _distribution(parameters: Tensor) -> Normal:
    mean, log_sd = (5 * torch.tanh(parameters / 5)).chunk(2, 1)
    return Normal(mean, log_sd.exp())


def _plain_kl(q: Tensor, p: Tensor) -> Tensor:
    return kl_divergence(_distribution(q), _distribution(p)).flatten(1).sum(1)


def _plain_sample(q: Tensor, noise: Tensor) -> Tensor:
    d = _distribution(q)
    return d.mean + d.stddev * noise


def _check(found: Callable[..., Tensor], plain: Callable[..., Tensor], inputs: list[Tensor], wanted: int) -> None:
    """Values and gradients for the first `wanted` inputs, to 3e-6 of the largest entry; the worst seen is 7e-7."""
    doubles = [x.detach().double().requires_grad_() for x in inputs]
    singles = [x.detach().requires_grad_() for x in inputs]
    results = []
    for function, tensors in ((found, singles), (plain, doubles)):
        y = function(*tensors)
        direction = _random(tuple(y.shape), seed=9, scale=1.0).to(y)
        slopes = torch.autograd.grad(y, tensors[:wanted], direction) if wanted else ()
        results.append([y.detach(), *slopes])
    for f, e in zip(*results, strict=True):
        assert f.shape == e.shape and f.dtype == torch.float32
        assert (f.double() - e).abs().max() <= 3e-6 * e.abs().max()


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("pixel_major", [True, False])
def test_kl_and_samples_equal_those_of_torch_distributions(
    shape: tuple[int, ...], pixel_major: bool, threads: int
) -> None:
    q, p = _random(shape, 0), _random(shape, 1)
    noise = _random((shape[0], shape[1] // 2, *shape[2:]), 2, 1.0)
    if pixel_major and len(shape) > 2:
        q, p = (x.permute(2, 3, 0, 1).contiguous().permute(2, 3, 0, 1) for x in (q, p))
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        _check(normal.kl, _plain_kl, [q, p], 2)
        _check(normal.sample, _plain_sample, [q, noise], 1)
    finally:
        torch.set_num_threads(before)


def test_one_row_of_a_prior_serves_all_rows() -> None:
    _check(normal.kl, _plain_kl, [_random((6, 8), 0), _random((1, 8), 1)], 2)


def test_a_second_pass_backward_finds_the_same_gradient() -> None:
    q, p = (_random((4, 6, 2, 2), seed).requires_grad_() for seed in (0, 1))
    kl = normal.kl(q, p).sum()
    first = torch.autograd.grad(kl, [q, p], retain_graph=True)
    for a, b in zip(first, torch.autograd.grad(kl, [q, p]), strict=True):
        assert torch.equal(a, b)


def test_the_ends_of_the_range_and_undefined_parameters() -> None:
    extreme = torch.tensor([[0.0, -1e30, 1e-20, 40.0, 1e30, -40.0, -1e-20, 0.0]])
    _check(normal.kl, _plain_kl, [extreme, extreme.flip(1)], 0)
    q, p = extreme.clone().requires_grad_(), extreme.flip(1).requires_grad_()
    assert all(slope.isfinite().all() for slope in torch.autograd.grad(normal.kl(q, p), [q, p]))
    assert torch.equal(normal.kl(extreme, extreme), torch.zeros(1))
    extreme[0, 2] = torch.nan
    assert normal.kl(extreme, _random((1, 8), 0)).isnan().all()
    assert normal.sample(extreme, torch.ones(1, 4)).isnan().tolist() == [[False, False, True, False]]
