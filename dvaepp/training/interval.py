"""How often a run validates where its recipe leaves that open (`training.validate_every=null`).

The interval is computed once, before the first step, from counted multiply-adds. A clock would give another interval on
another machine, and a resumed run would differ from an unbroken one. With v the work of a validation in steps, n
validations take the share n v / (n v + steps) of the time, which is `SHARE` for n = steps / v · SHARE / (1 - SHARE).
"""

import copy
import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch.utils.flop_counter import FlopCounterMode

from dvaepp.models.base import Model
from dvaepp.models.noise import BatchNoise
from dvaepp.recipes.schema import Recipe
from dvaepp.training.schedules import smoothing_at
from dvaepp.training.state import sums_exactly

UNCOUNTED = 0.1  # the interval, as a share of the steps, for a model whose work cannot be counted
SHARE = 0.1  # about the share of a run's time that validations may take
FINEST = 0.02  # the shortest interval: a full schedule of Tables 1 and 2 validates after every 2 % of its steps
FINEST_WITH_PLATEAU = 1 / 400  # the same where decays wait for a number of validations: an epoch of Table 3
BACKWARD = 2  # a backward pass multiplies twice as often as the forward pass
LOG_Z_SWEEPS = 200_000  # sweeps of one chain in an estimate of log Z: 16 replicas, about 16 temperatures, 780 sweeps


def with_interval(recipe: Recipe, model: Model, num_images: int) -> Recipe:
    """The recipe with a number for `training.validate_every`, counted for `num_images` of validation if it has none."""
    if recipe.training.validate_every is not None:
        return recipe
    try:
        work = Work(forward_work(recipe, model), sweep_work(model), sums_exactly(model))
    except Exception:
        if recipe.model.counted:
            raise
        # A user's network may look at the numbers that it is given, and the copy on the meta device has none.
        return validating(recipe, UNCOUNTED)
    steps, v = recipe.training.steps, work.validation_in_steps(recipe, num_images)
    number = max(1, int(steps / v * SHARE / (1 - SHARE)))
    finest = FINEST if recipe.optimizer.plateau is None else FINEST_WITH_PLATEAU
    # The interval is rounded up to whole steps. Rounded down, it would leave a short last interval at the end.
    return validating(recipe, max(finest, math.ceil(steps / number) / steps))


def validating(recipe: Recipe, every: float | None) -> Recipe:
    """The recipe with this interval of validations."""
    return recipe.model_copy(update={"training": recipe.training.model_copy(update={"validate_every": every})})


class Work(NamedTuple):
    """Multiply-adds of the bound of one image and of one sweep of one chain; whether log Z is an exact sum."""

    forward: int
    sweep: int
    exact_log_z: bool

    def step(self, recipe: Recipe) -> int:
        """Bound and gradient of a batch, and the sweeps of the chains."""
        images = recipe.training.batch_size * recipe.training.importance_samples
        return (1 + BACKWARD) * images * self.forward + recipe.chains.num_chains * recipe.chains.num_sweeps * self.sweep

    def validation(self, recipe: Recipe, num_images: int) -> int:
        """The bound of each image, its importance samples, and log Z.

        An importance sample is counted as a whole forward pass. It takes fewer multiply-adds than that, because each
        image is encoded only once. The difference stands for its noise and its logarithms, which are not counted.
        """
        images = min(num_images, recipe.training.validation_images or num_images)
        passes = images * (1 + (recipe.training.validation_samples or 0))
        once = passes * self.forward + (0 if self.exact_log_z else LOG_Z_SWEEPS) * self.sweep
        return once if recipe.training.average is None else 2 * once  # averaged weights are validated too

    def validation_in_steps(self, recipe: Recipe, num_images: int) -> float:
        return self.validation(recipe, num_images) / max(1, self.step(recipe))


def sweep_work(model: Model) -> int:
    """Multiply-adds of one Gibbs sweep of one chain; none where the prior is directed."""
    if model.boltzmann is None:
        return 0
    return sum(conditional.weight.numel() for conditional in model.boltzmann.block_form().conditionals)


@torch.no_grad()
def forward_work(recipe: Recipe, model: Model) -> int:
    """Multiply-adds of the bound of one image, counted on a copy of the model that has shapes and no numbers.

    The copy is in evaluation mode, because batch norm in training mode waits for the other processes of a job.
    """
    shapes = copy.deepcopy(model).to("meta").eval()
    x = torch.empty(1, *model.sample_shape, dtype=next(shapes.parameters()).dtype, device="meta")
    noise = BatchNoise(None, x.device, dtype=x.dtype)
    with FlopCounterMode(display=False, custom_mapping={torch.ops.aten.addmm_: _addmm}) as counter:
        shapes.terms(x, smoothing_at(recipe.smoothing, 0.0), noise, objective=recipe.training.objective)
    return int(counter.get_total_flops()) // 2


def _addmm(out: Sequence[int], a: Sequence[int], b: Sequence[int], **_: object) -> int:
    """Operations of `addmm_`, from the shapes of its arguments, because torch's counter leaves this product out."""
    return 2 * a[0] * a[1] * b[1]
