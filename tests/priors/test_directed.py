import pytest
import torch
from torch import Tensor, nn

from dvaepp.errors import UsageError
from dvaepp.priors import Directed


class _Joined(nn.Module):
    """A linear map of the earlier groups side by side."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.map = nn.Linear(inputs, outputs)

    def forward(self, *groups: Tensor) -> Tensor:
        return self.map(torch.cat(groups, -1))


def _random(sizes: list[int]) -> Directed:
    torch.manual_seed(0)
    prior = Directed.for_groups(sizes, _Joined)
    for parameter in prior.parameters():
        nn.init.normal_(parameter)
    return prior


EXAMPLES = [lambda: _random([5]), lambda: _random([2, 3]), lambda: _random([1, 2, 2])]


def test_log_prob_by_hand() -> None:
    prior = Directed([1, 1], [nn.Linear(1, 1)])
    with torch.no_grad():
        prior.first_logits.fill_(0.3)
        prior.networks[0].weight.fill_(2.0)
        prior.networks[0].bias.fill_(-1.0)
    z, zeta = torch.tensor([[1.0, 0.0]]), torch.tensor([[0.75, 0.5]])
    expected = torch.sigmoid(torch.tensor(0.3)).log() + torch.sigmoid(torch.tensor(1.0 - 2 * 0.75)).log()
    assert prior.log_prob(z, zeta).item() == pytest.approx(expected.item(), abs=1e-6)
    binary = torch.sigmoid(torch.tensor(0.3)).log() + torch.sigmoid(torch.tensor(1.0 - 2)).log()
    assert prior.log_prob(z).item() == pytest.approx(binary.item(), abs=1e-6)


def test_the_number_of_networks_is_checked() -> None:
    with pytest.raises(ValueError, match="a directed prior of 2 groups needs 1 networks, .* got 0"):
        Directed([3, 4])
    with pytest.raises(UsageError, match="group_sizes must be positive"):
        Directed([])
