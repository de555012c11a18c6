"""Any dimod sampler as ours, e.g. simulated annealing of dwave-samplers (extra `dwave`)."""

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from dvaepp.priors.base import BoltzmannPrior
from dvaepp.priors.bqm import to_bqm


@dataclass(frozen=True)
class DimodSampler:
    """Draw chains with `sampler.sample(bqm, num_reads=..., **options)`; the energy is that of the prior at β = 1.

    Options that a sampler calls otherwise go into `options`; those named in `given` are filled in for it. An annealer
    samples the Boltzmann distribution only as far as it ends at β = 1 slowly enough: give it beta_range=[0.1, 1].

    >>> from dwave.samplers import SimulatedAnnealingSampler
    >>> sampler = DimodSampler(SimulatedAnnealingSampler(), options={"beta_range": [0.1, 1.0]})
    """

    sampler: Any
    options: dict[str, Any] = field(default_factory=dict)
    given: tuple[str, ...] = ("num_sweeps", "seed")

    def __call__(
        self, prior: BoltzmannPrior, z: Tensor, num_sweeps: int, generator: torch.Generator | None = None
    ) -> Tensor:
        prior.check_states(z)
        device = generator.device if generator else torch.device("cpu")
        seed = int(torch.randint(0, 2**31 - 1, (), generator=generator, dtype=torch.int64, device=device))
        known = {"num_sweeps": num_sweeps, "seed": seed}
        options = {name: known[name] for name in self.given} | self.options
        samples = self.sampler.sample(to_bqm(prior), num_reads=len(z), **options)
        columns = [samples.variables.index(unit) for unit in range(prior.num_units)]
        states = np.asarray(samples.record.sample)[:, columns]
        if str(samples.vartype) == "Vartype.SPIN" or samples.vartype.name == "SPIN":
            states = (states + 1) // 2
        repeats = np.repeat(states, samples.record.num_occurrences, axis=0)[: len(z)]
        return torch.as_tensor(repeats, dtype=z.dtype, device=z.device)
