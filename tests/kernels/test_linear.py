"""networks.linear: torch's linear map, with its own gradients."""

import pytest
import torch
from torch.nn.functional import linear as plain

from dvaepp.kernels.linear import linear


@pytest.mark.parametrize("biased", [True, False])
@pytest.mark.parametrize("shape", [(7, 5), (4, 6, 5), (0, 5)])
def test_it_is_torchs_with_first_and_second_derivatives(shape: tuple[int, ...], biased: bool) -> None:
    g = torch.Generator().manual_seed(0)
    x, w, b = (torch.randn(s, generator=g, dtype=torch.float64, requires_grad=True) for s in (shape, (3, 5), (3,)))
    tensors = [x, w, *([b] if biased else [])]
    found, expected = linear(*tensors), plain(*tensors)
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-14)
    direction = torch.randn(found.shape, generator=g, dtype=torch.float64)
    for mine, theirs in zip(
        torch.autograd.grad(found, tensors, direction), torch.autograd.grad(expected, tensors, direction), strict=True
    ):
        torch.testing.assert_close(mine, theirs, rtol=0, atol=1e-13)
    if len(x):
        assert torch.autograd.gradcheck(linear, tensors) and torch.autograd.gradgradcheck(linear, tensors)


def test_strided_inputs_and_gradients_for_some_only() -> None:
    g = torch.Generator().manual_seed(1)
    x = torch.randn(6, 4, 8, generator=g, dtype=torch.float64)[:, ::2].transpose(0, 1).requires_grad_()
    w = torch.randn(5, 8, generator=g, dtype=torch.float64)
    y = linear(x, w)
    torch.testing.assert_close(y, x @ w.T, rtol=0, atol=1e-13)
    (dx,) = torch.autograd.grad(y.sum(), x)
    torch.testing.assert_close(dx, w.sum(0).expand(x.shape), rtol=0, atol=1e-13)
    w = w.requires_grad_()
    (dw,) = torch.autograd.grad(linear(x.detach(), w).sum(), w)
    torch.testing.assert_close(dw, x.detach().sum((0, 1)).expand(5, 8), rtol=0, atol=1e-13)
