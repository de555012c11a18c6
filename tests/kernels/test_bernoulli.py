"""log p(x) of Bernoulli variables, compiled and plain, against float64."""

import pytest
import torch
from torch import Tensor
from torch.nn.functional import softplus

from dvaepp.kernels import bernoulli, policy


def _log_prob(x: Tensor, logits: Tensor) -> Tensor:
    return (x * logits).sum(-1) - softplus(logits).sum(-1)


@pytest.fixture(params=["compiled", "plain"])
def path(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.param == "plain":
        monkeypatch.setenv("DVAEPP_KERNEL", "-bernoulli")
    elif not policy.on("bernoulli"):
        pytest.skip("no C compiler here, or DVAEPP_KERNEL=off")


@pytest.mark.usefixtures("path")
@pytest.mark.parametrize("shape", [(1, 1), (5, 63), (3, 64), (7, 200), (20, 784), (2, 3000)])
@pytest.mark.parametrize("scale", [0.0, 1.0, 5.0, 100.0])
def test_log_prob_and_slope_equal_float64(shape: tuple[int, int], scale: float) -> None:
    """Within 2e-7 per variable and float32's rounding of the sum; logits reach ±100 and beyond."""
    g = torch.Generator().manual_seed(shape[1])
    x = (torch.rand(shape, generator=g) < 0.4).float()
    logits = (scale * torch.randn(4, *shape, generator=g)).requires_grad_()
    value = bernoulli.log_prob(x, logits)
    exact = _log_prob(x.double(), logits.detach().double())
    assert value.shape == (4, shape[0])
    assert ((value.double() - exact).abs() <= 2e-7 * shape[1] + 3e-7 * exact.abs()).all()
    with torch.no_grad():
        assert torch.equal(bernoulli.log_prob(x, logits), value)
    weights = torch.randn(4, shape[0], generator=g)
    (slope,) = torch.autograd.grad((weights * value).sum(), logits)
    expected = weights[..., None] * (x - torch.sigmoid(logits.detach().double()))
    torch.testing.assert_close(slope.double(), expected, rtol=1e-5, atol=5e-7)


@pytest.mark.usefixtures("path")
def test_log_prob_is_exact_at_extreme_logits() -> None:
    logits = torch.tensor([[100.0, -100.0, 80.0, 1e4, -1e4, 3e38, -3e38]])
    right = (logits > 0).float()
    assert bernoulli.log_prob(right, logits).item() == 0
    wrong = bernoulli.log_prob(1 - right[:, :5], logits[:, :5])
    torch.testing.assert_close(wrong, torch.tensor([-20280.0]), rtol=1e-6, atol=0)
    assert bernoulli.log_prob(right[:, :1], torch.full((1, 1), torch.nan)).isnan().all()


@pytest.mark.usefixtures("path")
def test_log_prob_differentiates_twice() -> None:
    x = torch.tensor([[1.0, 0.0, 1.0]])
    logits = torch.tensor([[0.5, -1.0, 2.0]], requires_grad=True)
    (slope,) = torch.autograd.grad(bernoulli.log_prob(x, logits).sum(), logits, create_graph=True)
    (second,) = torch.autograd.grad(slope.sum(), logits)
    mu = torch.sigmoid(logits.detach())
    torch.testing.assert_close(second, -mu * (1 - mu))


@pytest.mark.usefixtures("path")
def test_log_prob_takes_any_layout_and_type() -> None:
    x, logits = (torch.randn(6, 8).sign().clamp_min(0), torch.randn(6, 8))
    expected = bernoulli.log_prob(x, logits)
    wide = torch.stack([logits, logits], -1)
    torch.testing.assert_close(bernoulli.log_prob(x.t().contiguous().t(), wide[..., 0]), expected)
    torch.testing.assert_close(bernoulli.log_prob(x.double(), logits.double()).float(), expected)
    torch.testing.assert_close(bernoulli.log_prob(x[:1], logits), _log_prob(x[:1], logits))
    assert bernoulli.log_prob(torch.zeros(0, 8), torch.zeros(0, 8)).shape == (0,)
    x.requires_grad_()
    (slope,) = torch.autograd.grad(bernoulli.log_prob(x, logits).sum(), x)
    torch.testing.assert_close(slope, logits)
