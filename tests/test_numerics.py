import pytest
import torch
from torch import Tensor
from torch.autograd import gradcheck, gradgradcheck
from torch.nn.functional import logsigmoid, softplus

from dvaepp import numerics
from dvaepp.numerics import Evaluation, bernoulli_entropy, bernoulli_log_prob, increasing_root, saturate, uniform


def test_noise_is_open_symmetric_and_exact_in_float32() -> None:
    rho = uniform(1_000_000, generator=torch.Generator().manual_seed(0))
    assert rho.dtype == torch.float32 and rho.min() > 0 and rho.max() < 1
    steps = rho.double() * 2**23
    assert torch.equal(steps - steps.floor(), torch.full_like(steps, 0.5))
    assert torch.equal(1 - (1 - rho), rho)
    assert (rho.double().mean() - 0.5).abs() < 5 / (12 * 1_000_000) ** 0.5
    again = uniform(1_000_000, generator=torch.Generator().manual_seed(0))
    assert torch.equal(rho, again)


def test_noise_of_narrow_types_is_drawn_wide() -> None:
    assert uniform(3, dtype=torch.bfloat16).dtype == torch.float32
    assert uniform(3, dtype=torch.float64).dtype == torch.float64


def test_root_survives_flat_and_steep_stretches() -> None:
    target = torch.tensor([1e-12, 1e-3, 0.5, 0.999, 1.0], dtype=torch.float64)

    def cube_root(x: torch.Tensor) -> Evaluation:  # infinite slope at 0
        return Evaluation(x ** (1 / 3) - target, x ** (-2 / 3) / 3)

    def steep(x: torch.Tensor) -> Evaluation:  # flat, then a cliff
        return Evaluation(torch.sigmoid(1e6 * (x - 0.3)) - target, torch.zeros_like(x))

    ends = torch.zeros(5, dtype=torch.float64), torch.ones(5, dtype=torch.float64)
    torch.testing.assert_close(increasing_root(cube_root, *ends, scale=target), target**3, rtol=1e-9, atol=1e-30)
    assert (increasing_root(steep, *ends, scale=target)[:4] - 0.3).abs().max() < 1e-4


def test_saturate_keeps_the_sign() -> None:
    x = torch.tensor([1e300, -1e300, 0.5], dtype=torch.float64)
    limit = torch.finfo(torch.float32).max
    assert saturate(x, torch.float32).tolist() == [limit, -limit, 0.5]


def _defined_entropy(logits: Tensor) -> Tensor:
    return -torch.sigmoid(logits) * logsigmoid(logits) - torch.sigmoid(-logits) * logsigmoid(-logits)


def test_entropy_and_its_slope_equal_the_definition() -> None:
    single = torch.linspace(-100, 100, 2001).requires_grad_()
    logits = single.detach().double()
    torch.testing.assert_close(bernoulli_entropy(single).double(), _defined_entropy(logits), rtol=1e-5, atol=1e-7)
    (slope,) = torch.autograd.grad(bernoulli_entropy(single).sum(), single)
    exact = -logits * torch.sigmoid(logits) * torch.sigmoid(-logits)
    torch.testing.assert_close(slope.double(), exact, rtol=2e-6, atol=1e-36)
    few = torch.tensor([-20.0, -1.0, 0.3, 4.0], dtype=torch.float64, requires_grad=True)
    assert gradcheck(bernoulli_entropy, few) and gradgradcheck(bernoulli_entropy, few)


def _log_prob(x: Tensor, logits: Tensor) -> Tensor:
    return (x * logits).sum(-1) - softplus(logits).sum(-1)


@pytest.fixture(params=["compiled", "plain"])
def path(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.param == "plain":
        monkeypatch.setattr(numerics, "_log_prob_kernel", lambda: None)
    elif numerics._log_prob_kernel() is None:
        pytest.skip("no C compiler here")


@pytest.mark.usefixtures("path")
@pytest.mark.parametrize("shape", [(1, 1), (5, 63), (3, 64), (7, 200), (20, 784), (2, 3000)])
@pytest.mark.parametrize("scale", [0.0, 1.0, 5.0, 100.0])
def test_log_prob_and_slope_equal_float64(shape: tuple[int, int], scale: float) -> None:
    """Within 2e-7 per variable and float32's rounding of the sum; logits reach ±100 and beyond."""
    g = torch.Generator().manual_seed(shape[1])
    x = (torch.rand(shape, generator=g) < 0.4).float()
    logits = (scale * torch.randn(4, *shape, generator=g)).requires_grad_()
    value = bernoulli_log_prob(x, logits)
    exact = _log_prob(x.double(), logits.detach().double())
    assert value.shape == (4, shape[0])
    assert ((value.double() - exact).abs() <= 2e-7 * shape[1] + 3e-7 * exact.abs()).all()
    with torch.no_grad():
        assert torch.equal(bernoulli_log_prob(x, logits), value)
    weights = torch.randn(4, shape[0], generator=g)
    (slope,) = torch.autograd.grad((weights * value).sum(), logits)
    expected = weights[..., None] * (x - torch.sigmoid(logits.detach().double()))
    torch.testing.assert_close(slope.double(), expected, rtol=1e-5, atol=5e-7)


@pytest.mark.usefixtures("path")
def test_log_prob_is_exact_at_extreme_logits() -> None:
    logits = torch.tensor([[100.0, -100.0, 80.0, 1e4, -1e4, 3e38, -3e38]])
    right = (logits > 0).float()
    assert bernoulli_log_prob(right, logits).item() == 0
    wrong = bernoulli_log_prob(1 - right[:, :5], logits[:, :5])
    torch.testing.assert_close(wrong, torch.tensor([-20280.0]), rtol=1e-6, atol=0)
    assert bernoulli_log_prob(right[:, :1], torch.full((1, 1), torch.nan)).isnan().all()


@pytest.mark.usefixtures("path")
def test_log_prob_differentiates_twice() -> None:
    x = torch.tensor([[1.0, 0.0, 1.0]])
    logits = torch.tensor([[0.5, -1.0, 2.0]], requires_grad=True)
    (slope,) = torch.autograd.grad(bernoulli_log_prob(x, logits).sum(), logits, create_graph=True)
    (second,) = torch.autograd.grad(slope.sum(), logits)
    mu = torch.sigmoid(logits.detach())
    torch.testing.assert_close(second, -mu * (1 - mu))


@pytest.mark.usefixtures("path")
def test_log_prob_takes_any_layout_and_type() -> None:
    x, logits = (torch.randn(6, 8).sign().clamp_min(0), torch.randn(6, 8))
    expected = bernoulli_log_prob(x, logits)
    wide = torch.stack([logits, logits], -1)
    torch.testing.assert_close(bernoulli_log_prob(x.t().contiguous().t(), wide[..., 0]), expected)
    torch.testing.assert_close(bernoulli_log_prob(x.double(), logits.double()).float(), expected)
    torch.testing.assert_close(bernoulli_log_prob(x[:1], logits), _log_prob(x[:1], logits))
    assert bernoulli_log_prob(torch.zeros(0, 8), torch.zeros(0, 8)).shape == (0,)
    x.requires_grad_()
    (slope,) = torch.autograd.grad(bernoulli_log_prob(x, logits).sum(), x)
    torch.testing.assert_close(slope, logits)
