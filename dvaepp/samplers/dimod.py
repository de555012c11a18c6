"""Samplers of dimod as samplers of ours, such as simulated annealing of dwave-samplers (extra `dwave`)."""

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from dvaepp.errors import UsageError
from dvaepp.priors.base import BoltzmannPrior
from dvaepp.priors.bqm import to_bqm
from dvaepp.samplers.base import Chains, Sampler


@dataclass(frozen=True)
class DimodSampler(Sampler):
    """In every step all chains are drawn anew by `sampler.sample(bqm, num_reads=..., **options)`.

    The model `bqm` has the energy of the prior. `sampler` is a dimod sampler, or the name of a class of
    `dwave.samplers`. `given` names which of `num_sweeps` and `seed` the sampler takes; with a seed, samples depend on
    the generator and the prior alone. All its other options go into `options`. Annealing leads to samples of the
    Boltzmann distribution only if it ends at β = 1 and gets there slowly enough. Simulated annealing goes from 0.1 to
    1 unless `options` have another `beta_range`.

    Choose it to train with an annealer, or with any sampler that speaks dimod (the extra `dwave`).

    >>> sampler = DimodSampler("SimulatedAnnealingSampler", options={"beta_range": [0.1, 1.0]})
    >>> isinstance(sampler, Sampler)
    True
    """

    sampler: Any = "SimulatedAnnealingSampler"
    options: dict[str, Any] = field(default_factory=dict)
    given: tuple[str, ...] = ("num_sweeps", "seed")

    def __post_init__(self) -> None:
        _solver(self.sampler)

    def step(
        self, prior: BoltzmannPrior, chains: Chains, num_sweeps: int, generator: torch.Generator | None = None
    ) -> Chains:
        z = chains.z
        prior.check_states(z)
        device = "cpu" if generator is None else generator.device
        seed = int(torch.randint(0, 2**31 - 1, (), generator=generator, device=device))
        known = {"num_sweeps": num_sweeps, "seed": seed}
        solver = _solver(self.sampler)
        annealing = {"beta_range": [0.1, 1.0]} if type(solver).__name__ == "SimulatedAnnealingSampler" else {}
        options = annealing | {name: known[name] for name in self.given} | self.options
        samples = solver.sample(to_bqm(prior), num_reads=len(z), **options)
        columns = [samples.variables.index(unit) for unit in range(prior.num_units)]
        states = np.asarray(samples.record.sample)[:, columns]
        if samples.vartype.name == "SPIN":
            states = (states + 1) // 2
        repeats = np.repeat(states, samples.record.num_occurrences, axis=0)[: len(z)]
        z = torch.as_tensor(repeats, dtype=z.dtype, device=z.device)
        return chains._replace(z=z, num_sweeps=chains.num_sweeps + num_sweeps)


def _solver(sampler: Any) -> Any:
    """The sampler itself, or the one that dwave-samplers has under this name."""
    if not isinstance(sampler, str):
        return sampler
    try:
        from dwave import samplers
    except ImportError:
        raise UsageError("this needs dwave-samplers: pip install 'dvaepp[dwave]'") from None
    known = [name for name in dir(samplers) if name.endswith("Sampler")]
    if sampler not in known:
        raise UsageError(f"dwave-samplers has no {sampler[:40]!r}; it has {', '.join(known)}")
    return getattr(samplers, sampler)()
