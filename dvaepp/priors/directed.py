"""The directed prior of Sec. 7.1 and 7.2: p(z_1) has free logits, p(z_a|ζ_<a) is given by a network for each a > 1."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from dvaepp.priors.family import DirectedPrior, Network, check_groups, earlier_units


class Directed(DirectedPrior):
    """Groups in turn, p(z) = Π_a p(z_a|ζ_<a), each by a network of those before it.

    Choose it where log p(z) must be known exactly, or to compare with a Boltzmann machine as Table 2 does.

    `networks[a]` takes the ζ of groups 0 ... a, one tensor each, and returns the logits of group a + 1.

    >>> prior = Directed([4, 2], [torch.nn.Linear(4, 2)])
    >>> prior.log_prob(prior.sample(3)).shape
    torch.Size([3])
    """

    def __init__(self, group_sizes: Sequence[int], networks: Sequence[nn.Module] = ()) -> None:
        super().__init__(group_sizes)
        if len(networks) != len(self.group_sizes) - 1:
            raise ValueError(
                f"a directed prior of {len(self.group_sizes)} groups needs {len(self.group_sizes) - 1} networks, "
                f"one for each group but the first, got {len(networks)}"
            )
        self.first_logits = nn.Parameter(torch.zeros(self.group_sizes[0], dtype=torch.float32))
        self.networks = nn.ModuleList(networks)

    @classmethod
    def for_groups(cls, group_sizes: Sequence[int], network: Network) -> "Directed":
        sizes = check_groups(group_sizes)
        pairs = list(zip(earlier_units(sizes), sizes, strict=True))
        return cls(sizes, [network(before, size) for before, size in pairs[1:]])

    def next_logits(self, before: Sequence[Tensor]) -> Tensor:
        if not before:
            return self.first_logits
        logits: Tensor = self.networks[len(before) - 1](*before)
        return logits
