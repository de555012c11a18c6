"""Products by oneDNN: the numbers and derivatives of torch's own in float64, whichever processor this is."""

from collections.abc import Callable, Iterator

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from dvaepp.kernels import policy, products

ROWS, INPUTS, OUTPUTS = 70, 240, 160  # above `policy.SMALLEST_PRODUCT`


@pytest.fixture(autouse=True)
def always(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    if not (torch.backends.mkldnn.is_available() and hasattr(torch.ops.mkldnn, "_linear_pointwise")):
        pytest.skip("this torch has no oneDNN")
    if "products" in policy.switched_off():
        pytest.skip("DVAEPP_KERNEL switches products off")
    monkeypatch.setattr(policy, "onednn_is_faster", lambda: True)
    yield


def drawn(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(sum(shape)))


X, WEIGHT = drawn(ROWS, INPUTS), drawn(OUTPUTS, INPUTS)
LAYOUTS = {
    "rows follow each other": (X, WEIGHT),
    "columns follow each other": (X.t().contiguous().t(), WEIGHT.t().contiguous().t()),
    "columns of larger matrices": (drawn(ROWS, INPUTS + 9)[:, 4 : INPUTS + 4], drawn(OUTPUTS, INPUTS + 7)[:, 7:]),
}
BIASES = {"none": None, "one row": drawn(OUTPUTS), "a matrix": drawn(ROWS, OUTPUTS)}


def expected(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    return x @ weight.t() + (0 if bias is None else bias)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("bias", BIASES)
def test_value_and_gradients_are_those_of_float64(layout: str, bias: str) -> None:
    x, weight = LAYOUTS[layout]
    given = [t for t in (x, weight, BIASES[bias]) if t is not None]
    assert policy.by_onednn(x, weight)
    single = [t.detach().requires_grad_() for t in given]
    double = [t.detach().double().requires_grad_() for t in given]
    found, wanted = (
        f(*(leaves if bias != "none" else [*leaves, None]))
        for f, leaves in ((products.linear, single), (expected, double))
    )
    slope = drawn(*found.shape)
    torch.testing.assert_close(found.double(), wanted, atol=1e-4, rtol=0)
    gradients = torch.autograd.grad(found, single, slope)
    for got, right in zip(gradients, torch.autograd.grad(wanted, double, slope.double()), strict=True):
        torch.testing.assert_close(got.double(), right, atol=2e-4, rtol=0)


def test_samples_in_front_of_the_rows() -> None:
    x = drawn(3, ROWS, INPUTS)
    torch.testing.assert_close(products.linear(x, WEIGHT), functional.linear(x, WEIGHT), atol=1e-4, rtol=0)


def test_second_derivatives_are_those_of_float64() -> None:
    def curvature(linear: Callable[[Tensor, Tensor], Tensor], dtype: torch.dtype) -> Tensor:
        x, weight = ((0.2 * t).to(dtype).requires_grad_() for t in (X, WEIGHT))
        (first,) = torch.autograd.grad(torch.tanh(linear(x, weight)).sum(), x, create_graph=True)
        return torch.autograd.grad(first.square().sum(), weight)[0].double()

    found, wanted = curvature(products.linear, torch.float32), curvature(functional.linear, torch.float64)
    assert (found - wanted).abs().max() < 1e-5 * wanted.abs().max()


def test_what_needs_no_gradient_gets_none() -> None:
    weight = WEIGHT.clone().requires_grad_()
    products.linear(X, weight).sum().backward()
    assert weight.grad is not None
    assert not products.linear(X, WEIGHT).requires_grad


def test_others_are_left_to_torch() -> None:
    assert not policy.by_onednn(X.double(), WEIGHT.double())
    assert not policy.by_onednn(X[:2], WEIGHT)
    assert torch.equal(products.linear(X[:2], WEIGHT), functional.linear(X[:2], WEIGHT))
    torch.set_num_threads(2)
    try:
        assert not policy.by_onednn(X, WEIGHT) and policy.by_onednn(
            X.repeat(2, 1), WEIGHT
        )  # each thread's share counts
    finally:
        torch.set_num_threads(1)
    each = torch.func.vmap(products.linear, (0, None))(drawn(2, ROWS, INPUTS), WEIGHT)
    assert each.shape == (2, ROWS, OUTPUTS)


def test_the_switch_leaves_products_to_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DVAEPP_KERNEL", "-products")
    assert not policy.by_onednn(X, WEIGHT)


@pytest.mark.parametrize("samples", [1, 3])
def test_inputs_side_by_side_are_one_product_of_them_joined(samples: int) -> None:
    """The first input may have fewer rows: the others then hold several samples for each of them."""
    given = [drawn(ROWS, 190), drawn(samples * ROWS, 150), drawn(OUTPUTS, 340), drawn(OUTPUTS)]
    single = [t.clone().requires_grad_() for t in given]
    double = [t.double().requires_grad_() for t in given]
    x, zeta, weight, bias = single
    found = products.side_by_side([x, zeta], weight, bias)
    x, zeta, weight, bias = double
    wanted = expected(torch.cat([x.repeat(samples, 1), zeta], 1), weight, bias)
    slope = drawn(*found.shape)
    torch.testing.assert_close(found.double(), wanted, atol=1e-4, rtol=0)
    gradients = torch.autograd.grad(found, single, slope)
    for got, right in zip(gradients, torch.autograd.grad(wanted, double, slope.double()), strict=True):
        torch.testing.assert_close(got.double(), right, atol=3e-4, rtol=0)
