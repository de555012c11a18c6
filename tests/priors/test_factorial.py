import subprocess
import sys

import torch
from torch import nn

from dvaepp.priors import Factorial


def _random(sizes: list[int]) -> Factorial:
    prior = Factorial(sizes)
    nn.init.normal_(prior.unit_logits, generator=torch.Generator().manual_seed(1))
    return prior


EXAMPLES = [lambda: _random([1]), lambda: _random([2, 4])]


def test_units_are_independent_with_their_own_logits() -> None:
    prior = _random([2, 1])
    z = torch.tensor([[1.0, 0.0, 1.0]])
    on, off = torch.sigmoid(prior.unit_logits), torch.sigmoid(-prior.unit_logits)
    torch.testing.assert_close(prior.log_prob(z).exp()[0], on[0] * off[1] * on[2])
    assert [part.shape for part in prior.logits([z[:, :2]])] == [(2,), (1,)]


def test_a_number_in_place_of_the_list_of_groups_is_told() -> None:
    """In a process of its own, because the tests check the types of all arguments themselves."""
    code = "from dvaepp.priors import Factorial; Factorial(8)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert "UsageError: group_sizes is a list with the units of each group, such as [8], got 8" in done.stderr
