"""Forward and backward of `sample` and `sample_components` on (100, 200) float32, one thread, ns per element.

Beside ours: Eq. 3 exactly as printed, in plain autograd (fast, and wrong at the extremes), and torch's own relaxed
Bernoulli. `validated` is ours with the checks of values that a training loop turns off. Every overlapping smoothing is
sampled by components, beside `sample` of `Exponential`, which the paper trains with.
"""

import math
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.distributions import RelaxedBernoulli

from benchmarks.timing import seconds
from dvaepp.smoothing import MEMBERS, Overlapping
from dvaepp.smoothing.exponential import Exponential
from dvaepp.smoothing.logistic import Logistic

SHAPE = (100, 200)
BETA = 8.0


def printed_formula(logits: Tensor, rho: Tensor, beta: float) -> Tensor:
    """Eq. 3 as the paper prints it."""
    q = torch.sigmoid(logits)
    d = math.exp(-beta)
    b = (rho + d * (q - rho)) / (1 - q) - 1
    c = -(q * d) / (1 - q)
    return -torch.log((-b + torch.sqrt(b**2 - 4 * c)) / 2) / beta


def run() -> dict[str, Any]:
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(SHAPE, generator=generator).requires_grad_()
    rho = torch.rand(SHAPE, generator=generator)
    upstream = torch.ones(SHAPE)
    ours, checked = Exponential(BETA, validate_args=False), Exponential(BETA, validate_args=True)
    logistic = Logistic(0.1, validate_args=False)
    temperature = torch.tensor(0.5)

    def relaxed() -> Tensor:
        return RelaxedBernoulli(temperature, logits=logits, validate_args=False).rsample()

    forwards = {
        "printed formula, plain autograd": lambda: printed_formula(logits, rho, BETA),
        "Exponential": lambda: ours.sample(logits, rho),
        "Exponential, validated": lambda: checked.sample(logits, rho),
        "Logistic": lambda: logistic.sample(logits, rho),
        "torch RelaxedBernoulli.rsample": relaxed,
    } | {
        f"{member.__name__}, by components": partial(member(validate_args=False).sample_components, logits, rho)
        for member in MEMBERS.values()
        if issubclass(member, Overlapping)
    }

    def both(forward: Any) -> Any:
        def step() -> None:
            logits.grad = None
            forward().backward(upstream)

        return step

    times = seconds({name: both(forward) for name, forward in forwards.items()}, rounds=25)
    plain, exponential = times["printed formula, plain autograd"], times["Exponential"]
    rows = [
        {
            "sample": name,
            "ns per element": t / logits.numel() * 1e9,
            "ratio to printed formula": t / plain,
            "ratio to Exponential": t / exponential,
        }
        for name, t in times.items()
    ]
    return {"shape": list(SHAPE), "beta": BETA, "threads": 1, "rows": rows}
