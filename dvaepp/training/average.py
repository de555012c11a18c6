"""Averaged weights (`training.average`): a second set of weights that follows the trained ones more slowly.

    w̄ <- w̄ + (w - w̄) / n,   n = min(step, average · steps)

It is the mean of all weights so far until n stops growing, and then an exponential moving average whose memory is the
share `average` of the schedule. The noise of single updates averages out as under a smaller learning rate, without its
slowness. Training itself does not see w̄.

Two quantities must not be averaged along with the weights, because they belong to one set of weights:

- The running statistics of batch norm are taken anew for w̄, from `BATCHES` batches of training images, whenever w̄ is
  about to be evaluated.
- log Z is that of the averaged prior, estimated from scratch (`log_partition`, from independent units). The persistent
  chains follow the trained prior alone; nothing of theirs is used for w̄, which has no chains and needs none.
"""

from collections.abc import Iterator

import torch
from torch import Tensor, nn

from dvaepp.data import Dataset
from dvaepp.models.base import Model
from dvaepp.models.noise import BatchNoise
from dvaepp.recipes.schema import Recipe
from dvaepp.training.precision import WEIGHTS
from dvaepp.training.schedules import smoothing_at
from dvaepp.training.state import State

BATCHES = 100  # of training images, from which batch norm takes its statistics


@torch.no_grad()
def follow(recipe: Recipe, state: State) -> None:
    """Move the averaged weights towards the trained ones, after the update that `state` has counted."""
    if state.average is None or recipe.training.average is None:
        return
    memory = max(1.0, recipe.training.average * recipe.training.steps)
    share = 1 / min(float(state.step), memory)
    torch._foreach_lerp_(list(state.average.parameters()), list(state.model.parameters()), share)


@torch.no_grad()
def renew_statistics(recipe: Recipe, dataset: Dataset, average: Model, step: int, device: str) -> None:
    """Batch norm's means and variances under the averaged weights, from batches that all count the same.

    The images and the noise depend on the seed alone, and training's generator is left as it is.
    """
    norms = [module for module in average.modules() if isinstance(module, nn.modules.batchnorm._BatchNorm)]
    if not norms:
        return
    momenta = [norm.momentum for norm in norms]
    for norm in norms:
        norm.reset_running_stats()
    average.train()
    for number, (x, noise) in enumerate(_batches(recipe, dataset, device)):
        for norm in norms:
            norm.momentum = 1 / (number + 1)
        smoothing = smoothing_at(recipe.smoothing, step / recipe.training.steps)
        average.terms(x, smoothing, noise, objective=recipe.training.objective)
    for norm, momentum in zip(norms, momenta, strict=True):
        norm.momentum = momentum
    average.eval()


def _batches(recipe: Recipe, dataset: Dataset, device: str) -> Iterator[tuple[Tensor, BatchNoise]]:
    """At most `BATCHES` batches of different training images, each with noise."""
    seed, size, dtype = recipe.training.seed + 2, recipe.training.batch_size, WEIGHTS[recipe.training.precision]
    generator = torch.Generator(device).manual_seed(seed)
    order = torch.randperm(len(dataset.train), generator=torch.Generator("cpu").manual_seed(seed), device="cpu")
    whole = len(order) // size * size or len(order)
    for indices in order[: min(whole, BATCHES * size)].split(size):
        x = dataset.batch(indices, generator).to(device, dtype)
        yield x, BatchNoise(generator, x.device, dtype=dtype)
