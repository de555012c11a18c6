"""The quantiser's KL beside enumeration and quadrature-free oracles, its layouts, its types and its statistics."""

import math

import pytest
import torch

from dvaepp.errors import UsageError
from dvaepp.nn import BinaryQuantizer, usage
from dvaepp.priors import RBM, BoltzmannMachine, Factorial
from dvaepp.smoothing import Concrete, Exponential, Logistic


def _generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


@pytest.fixture
def quantizer() -> BinaryQuantizer:
    torch.manual_seed(0)
    return BinaryQuantizer(6, 5)


@pytest.mark.parametrize(
    ("shape", "channel_first"),
    [((2, 7, 6), None), ((3, 6), None), ((2, 6, 4, 3), None), ((2, 4, 3, 6), False), ((2, 6, 9), True)],
)
def test_layouts_agree_with_one_another(
    quantizer: BinaryQuantizer, shape: tuple[int, ...], channel_first: bool | None
) -> None:
    features = torch.randn(shape, generator=_generator())
    quantizer.channel_first = channel_first
    quantizer.eval()
    codes, zeta, loss = quantizer(features)
    place = 1 if quantizer._is_channel_first(features) else -1
    expected = list(shape)
    expected[place] = 5
    assert list(codes.shape) == list(zeta.shape) == expected and loss.shape == ()
    assert quantizer.expand(zeta).shape == features.shape
    flat = features.movedim(place, -1).reshape(-1, 6)
    alone = torch.stack([quantizer.project_in(row) > 0 for row in flat]).long()
    assert torch.equal(codes.movedim(place, -1).reshape(-1, 5), alone) and torch.equal(zeta, codes.float())
    numbers = quantizer.indices(codes)
    assert torch.equal(numbers.reshape(-1), sum(alone[:, i] * 2 ** (4 - i) for i in range(5)))
    assert torch.equal(quantizer.from_indices(numbers, channel_first=place == 1), codes)


def _states(bits: int) -> torch.Tensor:
    return ((torch.arange(2**bits)[:, None] >> torch.arange(bits)) & 1).double()


@pytest.mark.parametrize("prior", [RBM(2, 3), BoltzmannMachine(5), Factorial([5]), Factorial([2, 3])])
def test_the_loss_in_evaluation_is_the_kl_by_enumeration(prior) -> None:
    with torch.no_grad():
        for parameter in prior.parameters():
            parameter.normal_(0, 1, generator=_generator(3))
    torch.manual_seed(1)
    quantizer = BinaryQuantizer(4, 5, prior=prior).eval()
    features = torch.randn(3, 4, generator=_generator(2))
    logits = quantizer.project_in(features).double()
    z = _states(5)
    log_q = torch.distributions.Bernoulli(logits=logits[:, None]).log_prob(z).sum(-1)
    log_p = torch.log_softmax(prior.unnormalized_log_prob(z).double(), 0)
    expected = (log_q.exp() * (log_q - log_p)).sum(1).mean()
    assert quantizer(features).loss.item() == pytest.approx(expected.item(), rel=1e-5)


def test_the_loss_in_training_averages_to_the_kl_of_smoothed_units() -> None:
    """Oracle: the KL of ζ by a sum over a fine grid of both densities; 20 000 sites, five standard errors."""
    torch.manual_seed(0)
    smoothing = Logistic(scale=0.2)
    quantizer = BinaryQuantizer(1, 1, smoothing=smoothing)
    with torch.no_grad():
        quantizer.project_in.weight.fill_(1.0)
        quantizer.project_in.bias.zero_()
        quantizer.prior.unit_logits.fill_(-0.4)
    losses = torch.stack([quantizer(torch.full((500, 1), 1.3), _generator(i)).loss.detach() for i in range(40)])
    grid = torch.linspace(-6, 7, 200_001, dtype=torch.float64)
    log_q = smoothing.log_prob(grid, torch.tensor(1.3, dtype=torch.float64))
    log_p = smoothing.log_prob(grid, torch.tensor(-0.4, dtype=torch.float64))
    expected = torch.trapezoid(log_q.exp() * (log_q - log_p), grid)
    assert abs(losses.mean() - expected) < 5 * losses.std() / math.sqrt(40)
    assert losses.std() / math.sqrt(40) < 0.02 * expected


@pytest.mark.parametrize("prior", [None, RBM(5, 5)])
def test_it_learns_to_keep_what_it_must(prior) -> None:
    """Sixteen points of four signs through ten bits: the code must tell all of them apart."""
    torch.manual_seed(0)
    points = 2 * _states(4).float() - 1
    quantizer = BinaryQuantizer(4, 10, prior=prior)
    optimizer = torch.optim.Adam(quantizer.parameters(), 0.03)
    for step in range(300):
        codes, zeta, loss = quantizer(points, _generator(step))
        error = (quantizer.expand(zeta) - points).square().mean()
        optimizer.zero_grad()
        (error + 0.001 * loss).backward()
        optimizer.step()
    quantizer.eval()
    codes, zeta, _ = quantizer(points)
    assert (quantizer.expand(zeta) - points).square().mean() < 0.1
    assert usage(codes).num_codes == 16 and usage(codes).perplexity == pytest.approx(16)
    assert all(p.grad is not None for p in quantizer.prior.parameters())


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("prior", [None, RBM(3, 2)])
def test_half_precision_stays_finite_at_extremes(dtype: torch.dtype, prior) -> None:
    torch.manual_seed(0)
    quantizer = BinaryQuantizer(6, 5, prior=prior, smoothing=Exponential(beta=8.0))
    features = (torch.randn(50, 6, generator=_generator()) * 3000).to(dtype).requires_grad_()
    codes, zeta, loss = quantizer(features, _generator())
    assert zeta.dtype == dtype and loss.dtype == torch.float32 and math.isfinite(loss.item())
    (quantizer.expand(zeta).float().square().mean() + loss).backward()
    assert features.grad is not None and bool(torch.isfinite(features.grad).all())
    with torch.autocast("cpu", torch.bfloat16):
        assert math.isfinite(quantizer(features, _generator()).loss.item())
    halved = BinaryQuantizer(6, 5).to(dtype)
    codes, zeta, loss = halved(features.detach(), _generator())
    assert zeta.dtype == dtype and loss.dtype == torch.float32 and math.isfinite(loss.item())


def test_a_seed_repeats_the_sample(quantizer: BinaryQuantizer) -> None:
    features = torch.randn(9, 6)
    assert torch.equal(quantizer(features, _generator(1)).zeta, quantizer(features, _generator(1)).zeta)
    assert not torch.equal(quantizer(features, _generator(1)).zeta, quantizer(features, _generator(2)).zeta)


def test_usage_counts_what_is_there() -> None:
    codes = torch.tensor([[0, 1, 1], [0, 1, 0], [0, 1, 1], [0, 1, 0]])
    found = usage(codes)
    assert found.bit_entropy.tolist() == pytest.approx([0, 0, 1]) and found.num_codes == 2
    assert found.code_entropy == pytest.approx(1) and found.perplexity == pytest.approx(2)
    uneven = usage(torch.tensor([[0]] * 3 + [[1]]))
    assert uneven.code_entropy == pytest.approx(0.8112781) and uneven.bit_entropy.item() == pytest.approx(0.8112781)


def test_tokens_become_features_again(quantizer: BinaryQuantizer) -> None:
    """Codes are whole numbers, and the features that they stand for are not."""
    quantizer.eval()
    codes, zeta, _ = quantizer(torch.randn(2, 6, 4, 3, generator=_generator()))
    again = quantizer.expand(quantizer.from_indices(quantizer.indices(codes)))
    assert again.dtype == torch.float32 and torch.equal(again, quantizer.expand(zeta)) and again.shape == (2, 6, 4, 3)


def test_usage_knows_the_layout(quantizer: BinaryQuantizer) -> None:
    codes = torch.zeros(2, 5, 3, 3, dtype=torch.int64)
    codes[:, 1, 0] = 1
    found = quantizer.usage(codes)
    assert found.num_codes == 2 and found.bit_entropy.tolist() == pytest.approx([0, 0.9182958, 0, 0, 0])
    long = usage(torch.eye(100).long())
    assert long.num_codes == 100 and long.code_entropy == pytest.approx(math.log2(100))


def test_a_batch_without_sites_has_no_loss(quantizer: BinaryQuantizer) -> None:
    codes, zeta, loss = quantizer(torch.zeros(0, 6))
    assert codes.shape == zeta.shape == (0, 5) and loss.item() == 0


def test_what_cannot_be_is_refused() -> None:
    with pytest.raises(UsageError, match="smoothing must be overlapping, got Concrete"):
        BinaryQuantizer(4, 4, smoothing=Concrete(temperature=0.5))
    with pytest.raises(UsageError, match="as many units as there are bits, 4, got 6"):
        BinaryQuantizer(4, 4, prior=RBM(3, 3))
    with pytest.raises(UsageError, match="may have 12 units to enumerate, got 20"):
        BinaryQuantizer(4, 40, prior=RBM(20, 20))
    with pytest.raises(UsageError, match=r"must have 4 channels in dimension 1, got \(1, 3, 2, 2\)"):
        BinaryQuantizer(4, 4)(torch.zeros(1, 3, 2, 2))
    with pytest.raises(UsageError, match="at least 1"):
        BinaryQuantizer(0, 4)
    with pytest.raises(UsageError, match="63 bits"):
        BinaryQuantizer(4, 63).indices(torch.zeros(2, 63))
    with pytest.raises(UsageError, match=r"zeta must have 4 channels in dimension -1, got \(2, 5\)"):
        BinaryQuantizer(4, 4).expand(torch.zeros(2, 5))
    with pytest.raises(UsageError, match="codes must be 0 or 1; give the quantiser's codes"):
        BinaryQuantizer(4, 4).indices(torch.full((2, 4), 0.3))
    for wrong in (torch.tensor([16]), torch.tensor([-1]), torch.tensor([0.5])):
        with pytest.raises(UsageError, match="must be whole, from 0 to 15"):
            BinaryQuantizer(4, 4).from_indices(wrong)
    with pytest.raises(UsageError, match="at least one code"):
        usage(torch.zeros(0, 3))
