import torch
from torch import Tensor
from torch.autograd import gradcheck, gradgradcheck
from torch.nn.functional import logsigmoid

from dvaepp.numerics import Evaluation, bernoulli_entropy, increasing_root, saturate, uniform


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
