"""Parallel tempering (App. G: "chains at an adaptive number of temperatures").

Each replica is a ladder of chains at inverse temperatures 0 = β_0 < ... < β_T = 1 of the path in `blocks`. After every
sweep neighbours try to exchange states, even and odd pairs in turn. The exchange uses the energy the chains temper:

    log acceptance = (β_t - β_{t+1}) (D(z_{t+1}) - D(z_t)).

Exchanging anything else, for instance free energies while the chains temper the joint energy, changes the
distribution. The ladder adapts: with r_t the rejection rate of pair t, Λ = Σ r_t hardly depends on the spacing, so
equal shares of Λ give equal rates, and Λ / (1 - target) pairs give the target rate.
"""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from dvaepp.errors import UsageError
from dvaepp.priors.base import BoltzmannPrior
from dvaepp.samplers.blocks import BlockGibbs
from dvaepp.samplers.noise import Noise

MAX_TEMPERATURES = 400


class Adapted(NamedTuple):
    """A ladder and the swap rates it was measured to have."""

    ladder: list[float]
    swap_rates: list[float]


class Tempering:
    """Independent replicas of a ladder; row r * T + t of the engine starts at level t of replica r.

    Swaps exchange the temperatures of two rows rather than their states: `row_of` (replicas, T) says which row is at
    each level now, `level_of` (replicas, T) the inverse.
    """

    def __init__(
        self, prior: BoltzmannPrior, ladder: Sequence[float], num_replicas: int, base_logits: Tensor, noise: Noise
    ) -> None:
        check_ladder(ladder)
        if num_replicas < 1:
            raise UsageError(f"num_replicas must be at least 1, got {num_replicas}")
        self.num_replicas, self.num_levels = num_replicas, len(ladder)
        self.engine = BlockGibbs(prior, num_replicas * len(ladder), base_logits)
        device = self.engine.z.device
        self.ladder = torch.tensor(ladder, dtype=torch.float64, device=device)
        self.noise = noise
        self.row_of = torch.arange(self.num_levels, device=device).repeat(num_replicas, 1)
        self.level_of = self.row_of.clone()
        self.scale = self.ladder.float()[self.level_of].reshape(-1)
        self.swap_probability = torch.zeros(self.num_levels - 1, dtype=torch.float64, device=device)
        self.swap_tries = torch.zeros_like(self.swap_probability)
        self.round_trips = 0
        self._been_top = torch.zeros_like(self.level_of, dtype=torch.bool)
        self._been_bottom_since = torch.zeros_like(self._been_top)
        self._parity = 0
        self.engine.draw_base(noise)

    def sweep(self) -> Tensor:
        """One Gibbs sweep of every chain, then swaps; returns D by level after the swaps, (replicas, T) float64."""
        self.engine.sweep(self.noise, self.scale)
        return self.swap(self.engine.gap().reshape(self.num_replicas, self.num_levels))

    def swap(self, gap: Tensor) -> Tensor:
        """Exchange neighbours of one parity, given D of each row; returns D by level."""
        by_level = gap.gather(1, self.row_of)
        lower = torch.arange(self._parity, self.num_levels - 1, 2, device=gap.device)
        self._parity = 1 - self._parity
        if len(lower) == 0:
            return by_level
        upper = lower + 1
        log_ratio = (self.ladder[lower] - self.ladder[upper]) * (by_level[:, upper] - by_level[:, lower])
        probability = log_ratio.clamp_max(0).exp()
        self.swap_probability[lower] += probability.mean(0)
        self.swap_tries[lower] += 1
        accept = self.noise.uniform(*probability.shape).to(probability) < probability
        for table in (by_level, self.row_of):
            low, high = table[:, lower], table[:, upper]
            table[:, lower], table[:, upper] = torch.where(accept, high, low), torch.where(accept, low, high)
        levels = torch.arange(self.num_levels, device=gap.device).expand_as(self.row_of)
        self.level_of.scatter_(1, self.row_of, levels)
        self.scale = self.ladder.float()[self.level_of].reshape(-1)
        self._count_round_trips()
        return by_level

    def _count_round_trips(self) -> None:
        """A row makes a round trip when it is at β = 1 again after it has been at β = 0."""
        top, bottom = self.row_of[:, -1:], self.row_of[:, :1]
        self.round_trips += int((self._been_top & self._been_bottom_since).gather(1, top).sum())
        self._been_top.scatter_(1, top, True)
        self._been_bottom_since.scatter_(1, top, False).scatter_(1, bottom, True)

    def swap_rates(self) -> list[float]:
        """Mean acceptance probability of each pair of neighbours so far."""
        return (self.swap_probability / self.swap_tries.clamp_min(1)).tolist()

    def states(self, level: int = -1) -> Tensor:
        """The chains now at a level of the ladder (default: the prior itself), (replicas, units)."""
        rows = self.row_of[:, level] + torch.arange(self.num_replicas, device=self.row_of.device) * self.num_levels
        return self.engine.states()[rows]


def check_ladder(ladder: Sequence[float]) -> None:
    increasing = all(a < b for a, b in zip(ladder, list(ladder)[1:], strict=False))
    if len(ladder) < 2 or ladder[0] != 0 or ladder[-1] != 1 or not increasing:
        raise UsageError(f"a ladder of inverse temperatures must increase from 0 to 1, got {list(ladder)}")


def adapt_ladder(
    prior: BoltzmannPrior,
    base_logits: Tensor,
    noise: Noise,
    *,
    target_swap_rate: float = 0.6,
    num_replicas: int = 16,
    num_rounds: int = 6,
    num_sweeps: int = 60,
) -> Adapted:
    """Choose number and spacing of temperatures so that neighbours swap at about the target rate."""
    if not 0 < target_swap_rate < 1:
        raise UsageError(f"target_swap_rate must be in (0, 1), got {target_swap_rate}")
    ladder = [i / 8 for i in range(9)]
    rates: list[float] = []
    for round_ in range(num_rounds):
        run = Tempering(prior, ladder, num_replicas, base_logits, noise)
        for _ in range(num_sweeps << min(round_, 4)):
            run.sweep()
        rates = run.swap_rates()
        if round_ >= 2 and min(rates) > target_swap_rate - 0.15:
            break
        if round_ < num_rounds - 1:
            ladder = _respace(ladder, rates, target_swap_rate)
    return Adapted(ladder, rates)


def _respace(ladder: list[float], rates: list[float], target: float) -> list[float]:
    """Equal shares of the rejection Λ(β), accumulated linearly between the old temperatures."""
    # a pair that never swaps hides how far apart it is: count it as at least three steps
    rejection = torch.tensor([3.0 if rate < 0.02 else max(1 - rate, 1e-3) for rate in rates], dtype=torch.float64)
    barrier = torch.cat([torch.zeros(1, dtype=torch.float64), rejection.cumsum(0)])
    pairs = int(min(max(3.0, torch.ceil(barrier[-1] / (1 - target)).item()), MAX_TEMPERATURES - 1))
    wanted = torch.linspace(0, barrier[-1].item(), pairs + 1, dtype=torch.float64)
    old = torch.tensor(ladder, dtype=torch.float64)
    upper = torch.searchsorted(barrier, wanted).clamp(1, len(ladder) - 1)
    share = (wanted - barrier[upper - 1]) / (barrier[upper] - barrier[upper - 1])
    new = old[upper - 1] + share * (old[upper] - old[upper - 1])
    new[0], new[-1] = 0, 1
    return new.tolist()
