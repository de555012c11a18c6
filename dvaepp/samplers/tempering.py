"""Parallel tempering (App. G: "chains at an adaptive number of temperatures").

Each replica is a ladder of chains at inverse temperatures 0 = β_0 < ... < β_T = 1 of the path in `blocks`. After every
sweep neighbours try to exchange states, even and odd pairs in turn. The exchange uses the energy the chains temper:

    log acceptance = (β_t - β_{t+1}) (D(z_{t+1}) - D(z_t)).

Exchanging anything else, for instance free energies while the chains temper the joint energy, changes the
distribution. The ladder adapts: with r_t the rejection rate of pair t, Λ = Σ r_t hardly depends on the spacing, so
equal shares of Λ give equal rates, and Λ / (1 - target) pairs give the target rate.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from dvaepp.distributed import Shard
from dvaepp.errors import UsageError
from dvaepp.priors.base import BoltzmannPrior
from dvaepp.samplers.base import Chains, Sampler, fair_coins
from dvaepp.samplers.blocks import BlockGibbs, base_from_pilot
from dvaepp.samplers.noise import Noise

MAX_TEMPERATURES = 400


class Adapted(NamedTuple):
    """A ladder and the swap rates it was measured to have."""

    ladder: list[float]
    swap_rates: list[float]


class SwapPairs(NamedTuple):
    """Pairs of neighbouring levels, all even ones or all odd ones.

    `rows` (replicas, pairs, 2) is a view of `row_of` with the two rows of each pair, `inside` says which levels these
    are, and `apart` (pairs,) is how far their inverse temperatures are from each other.
    """

    rows: Tensor
    inside: slice
    apart: Tensor


class Tempering:
    """Independent replicas of a ladder; row r * T + t of the engine starts at level t of replica r.

    Swaps exchange the temperatures of two rows rather than their states: `row_of` (replicas, T) says which row of the
    replica is at each level now. All its tables are on the device of the chains, so that a sweep never waits for
    that device.
    """

    def __init__(
        self,
        prior: BoltzmannPrior,
        ladder: Sequence[float],
        num_replicas: int,
        base_logits: Tensor,
        noise: Noise,
        first_swap: int = 0,
    ) -> None:
        check_ladder(ladder)
        if num_replicas < 1:
            raise UsageError(f"num_replicas must be at least 1, got {num_replicas}")
        self.num_replicas, self.num_levels = num_replicas, len(ladder)
        self.engine = BlockGibbs(prior, num_replicas * len(ladder), base_logits, exact_energies=True)
        self.noise = noise
        device = self.engine.device
        self.ladder = torch.tensor(ladder, dtype=torch.float64, device=device)
        self.row_of = torch.arange(self.num_levels, dtype=torch.int64, device=device).repeat(num_replicas, 1)
        self._beta = self.ladder.repeat(num_replicas, 1)  # the engine reads β row by row
        self._swap_probability = torch.zeros_like(self.ladder[1:])
        self._swap_rounds = [0, 0]  # of even and of odd pairs
        self._parity = first_swap  # 0: the pairs (0, 1), (2, 3), ... come first
        self._pairs = [self._neighbours(parity) for parity in (0, 1)]
        self._been_top = torch.zeros_like(self.row_of, dtype=torch.bool)
        self._returning = self._been_top.clone()  # rows that have been at β = 1 and then at β = 0
        self._round_trips = torch.zeros_like(self.row_of[:, :1])
        self.engine.draw_base(noise)

    def start_from(self, states: Tensor) -> None:
        """Replace all chains by the given states, taken in turn; the level of the prior itself gets the first ones."""
        level_of = self.row_of.argsort(1)
        replicas = torch.arange(self.num_replicas, dtype=torch.int64, device=level_of.device)[:, None]
        place = replicas + self.num_replicas * (self.num_levels - 1 - level_of)
        self.engine.set_states(states.to(self.engine.device)[place.reshape(-1) % len(states)])

    def clamp(self, mask: Tensor, values: Tensor) -> None:
        """Hold units of each replica at all its temperatures, mask and values (replicas, units) or (units,)."""
        shape = (self.num_replicas, self.engine.num_units)
        rows = [tensor.expand(shape).repeat_interleave(self.num_levels, 0) for tensor in (mask, values)]
        self.engine.clamp(*rows)

    def sweep(self) -> Tensor:
        """One Gibbs sweep of every chain, then swaps; returns D by level after the swaps, (replicas, T) float64."""
        self.engine.sweep(self.noise, self._beta.view(-1))
        return self.swap(self.engine.gap())

    def swap(self, gap: Tensor) -> Tensor:
        """Exchange neighbours of one parity, given D of each row; returns D by level."""
        gap, parity = gap.view(self.row_of.shape), self._parity
        rows, inside, apart = self._pairs[parity]
        below, above = gap.gather(1, self.row_of)[:, inside].unflatten(1, rows.shape[1:]).unbind(-1)
        probability = (below - above).mul_(apart).clamp_max_(0).exp_()
        self._swap_probability[parity::2] += probability.mean(0)
        self._swap_rounds[parity] += 1
        accept = self.noise.uniform(*probability.shape) < probability
        rows.copy_(torch.where(accept[..., None], rows.flip(-1), rows))
        self._parity = 1 - parity
        self._beta.scatter_(1, self.row_of, self.ladder.expand_as(gap))
        self._count_round_trips()
        return gap.gather(1, self.row_of)

    def _neighbours(self, parity: int) -> SwapPairs:
        number = (self.num_levels - parity) // 2
        inside = slice(parity, parity + 2 * number)
        rows = self.row_of[:, inside].unflatten(1, (number, 2))
        return SwapPairs(rows, inside, self.ladder[inside].view(number, 2).diff()[:, 0])

    def _count_round_trips(self) -> None:
        """A row makes a round trip when it is at β = 1 again after it has been at β = 0."""
        top, bottom = self.row_of[:, -1:], self.row_of[:, :1]
        self._round_trips += self._returning.gather(1, top)
        self._been_top.scatter_(1, top, True)
        self._returning.scatter_(1, top, False).scatter_(1, bottom, self._been_top.gather(1, bottom))

    @property
    def round_trips(self) -> int:
        return int(self._round_trips.sum())

    def swap_rates(self) -> list[float]:
        """Mean acceptance probability of each pair of neighbours so far."""
        total: list[float] = self._swap_probability.tolist()
        return [each / max(self._swap_rounds[pair % 2], 1) for pair, each in enumerate(total)]

    def states(self, level: int = -1) -> Tensor:
        """The chains now at a level of the ladder (default: the prior itself), (replicas, units)."""
        first = torch.arange(self.num_replicas, dtype=torch.int64, device=self.engine.device) * self.num_levels
        return self.engine.states()[first + self.row_of[:, level]]


@dataclass(frozen=True)
class TemperingSampler(Sampler):
    """Parallel tempering on persistent ladders.

    Every chain is a replica with `num_temperatures` levels, equally spaced from β = 0, where couplings are off and
    biases stay, to the prior itself. All levels persist from step to step, so that states need not travel from hot to
    cold within one step. A sweep costs `num_temperatures` times one of Gibbs.

    Choose it for priors whose modes lie so far apart that Gibbs chains stay in one.

    >>> from dvaepp.samplers import pcd
    >>> pcd.init(RBM(3, 3), 10, sampler=TemperingSampler(num_temperatures=8)).z.shape
    torch.Size([10, 6])
    """

    num_temperatures: int = 8

    @property
    def states_per_chain(self) -> int:
        return self.num_temperatures

    def __post_init__(self) -> None:
        if not 2 <= self.num_temperatures <= MAX_TEMPERATURES:
            raise UsageError(f"num_temperatures must be from 2 to {MAX_TEMPERATURES}, got {self.num_temperatures}")

    def init(
        self,
        prior: BoltzmannPrior,
        num_chains: int,
        generator: torch.Generator | None = None,
        shard: Shard | None = None,
    ) -> Chains:
        chains = super().init(prior, num_chains, generator, shard)
        shape = (num_chains, self.num_temperatures - 1, prior.num_units)
        return chains._replace(hot=fair_coins(shape, prior, generator))

    @torch.no_grad()
    def step(
        self, prior: BoltzmannPrior, chains: Chains, num_sweeps: int, generator: torch.Generator | None = None
    ) -> Chains:
        prior.check()
        if chains.hot is None or chains.hot.shape[1] != self.num_temperatures - 1:
            raise UsageError(f"these chains are not of a sampler with {self.num_temperatures} temperatures")
        bias = prior.couplings().bias.detach()
        ladder = [level / (self.num_temperatures - 1) for level in range(self.num_temperatures)]
        noise = Noise(generator, bias.device)
        run = Tempering(prior, ladder, len(chains.z), bias, noise, first_swap=chains.num_sweeps % 2)
        run.engine.set_states(torch.cat([chains.hot, chains.z[:, None]], 1).flatten(0, 1))
        for _ in range(num_sweeps):
            run.sweep()
        levels = torch.stack([run.states(level) for level in range(self.num_temperatures)], 1)
        hot, z = levels[:, :-1].to(chains.z.dtype), levels[:, -1].to(chains.z.dtype)
        return Chains(z, chains.num_sweeps + num_sweeps, chains.shard, hot)


@torch.no_grad()
def tempered(
    prior: BoltzmannPrior,
    n: int,
    generator: torch.Generator | None = None,
    *,
    num_sweeps: int,
    clamp: Tensor | None = None,
    values: Tensor | None = None,
) -> Tensor:
    """n samples (n, units) of the prior, each by a replica of its own that starts from independent units.

    `clamp` and `values` hold units as in `gibbs`; rows of a mask (n, units) belong to the replicas.
    """
    prior.check()
    if clamp is None or values is None:
        if (clamp is None) != (values is None):
            raise UsageError("clamp and values go together: a boolean mask, and values where it is true")
        return _tempered(prior, n, generator, num_sweeps)
    clamp, values = prior.check_clamp(clamp, values, num_chains=n)
    if not clamp.dim() == values.dim() == 1:
        return _tempered(prior, n, generator, num_sweeps, (clamp, values))
    found = values.float().expand(n, -1).clone()
    if not bool(clamp.all()):
        found[:, ~clamp] = _tempered(prior.given(clamp, values), n, generator, num_sweeps)
    return found


def _tempered(
    prior: BoltzmannPrior,
    n: int,
    generator: torch.Generator | None,
    num_sweeps: int,
    clamped: tuple[Tensor, Tensor] | None = None,
) -> Tensor:
    noise = Noise(generator, prior.couplings().bias.device)
    base = base_from_pilot(prior, noise)
    run = Tempering(prior, adapt_ladder(prior, base, noise).ladder, n, base, noise)
    if clamped is not None:
        run.clamp(*clamped)
    for _ in range(num_sweeps):
        run.sweep()
    return run.states()


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
    # From a pair that hardly ever swaps one cannot tell how far apart it is. Its rejection counts as 3.
    rejection = [3.0 if rate < 0.02 else max(1 - rate, 1e-3) for rate in rates]
    barrier = np.concatenate([[0.0], np.cumsum(rejection)])
    pairs = int(np.clip(np.ceil(barrier[-1] / (1 - target)), 3, MAX_TEMPERATURES - 1))
    new = np.interp(np.linspace(0, barrier[-1], pairs + 1), barrier, ladder)
    new[0], new[-1] = 0, 1
    return list(new.tolist())
