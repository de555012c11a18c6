"""The factorial prior: independent units, p(z) = Π_i σ(m_i)^z_i σ(-m_i)^(1 - z_i), one free logit m_i each."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from dvaepp.priors.family import DirectedPrior, Network


class Factorial(DirectedPrior):
    """Independent units, p(z) = Π p(z_i).

    Choose it as the baseline that any structured prior has to beat; Table 3 calls it "Bernoulli".

    >>> Factorial([4, 4]).sample(3).shape
    torch.Size([3, 8])
    """

    def __init__(self, group_sizes: Sequence[int]) -> None:
        super().__init__(group_sizes)
        self.unit_logits = nn.Parameter(torch.zeros(self.num_units, dtype=torch.float32))

    @classmethod
    def for_groups(cls, group_sizes: Sequence[int], network: Network) -> "Factorial":
        return cls(group_sizes)

    def next_logits(self, before: Sequence[Tensor]) -> Tensor:
        return self.unit_logits.split(self.group_sizes)[len(before)]
