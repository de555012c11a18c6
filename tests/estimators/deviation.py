"""How far an estimator's mean is from the truth, in standard errors."""

from typing import NamedTuple

import torch
from torch import Tensor

from dvaepp.estimators import Estimator
from tests.estimators.models import Toy, flat, truth

BLOCKS = 50


class Mean(NamedTuple):
    """Over all draws: the gradient in one vector, the bound, and their standard errors from the spread of blocks."""

    gradient: Tensor
    error: Tensor
    bound: float
    bound_error: float


def mean(estimator: Estimator, sizes: tuple[int, ...], draws: int, seed: int = 3) -> Mean:
    model, generator = Toy(sizes, draws // BLOCKS), torch.Generator().manual_seed(seed)
    parameters, rows = list(model.parameters()), []
    for _ in range(BLOCKS):
        result = estimator.estimate(model, generator)
        gradient = flat(torch.autograd.grad(result.surrogate.mean(), parameters, allow_unused=True), parameters)
        rows.append(torch.cat([gradient, result.bound.mean()[None]]))
    table = torch.stack(rows)
    total, error = table.mean(0), table.std(0) / BLOCKS**0.5
    return Mean(total[:-1], error[:-1], total[-1].item(), error[-1].item())


def distance(estimate: Mean, sizes: tuple[int, ...], num_samples: int = 1) -> float:
    """The largest distance of a component of the gradient from enumeration, in standard errors."""
    apart = (estimate.gradient - truth(sizes, num_samples).gradient).abs()
    return (apart / estimate.error.clamp_min(1e-12)).max().item()


def deviation(estimator: Estimator, sizes: tuple[int, ...], draws: int, num_samples: int = 1) -> float:
    """The distance of an estimator's mean over so many draws."""
    return distance(mean(estimator.requires_grad_(False), sizes, draws), sizes, num_samples)


def shaken(estimator: Estimator, seed: int = 5) -> Estimator:
    """Own parameters away from their start, where a baseline of zero or a scale of one could hide a missing term."""
    generator = torch.Generator().manual_seed(seed)
    estimator = estimator.double()
    with torch.no_grad():
        for parameter in estimator.parameters():
            parameter += 0.5 * torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
    return estimator
