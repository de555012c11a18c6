"""How many parameters and how much memory a recipe takes, found before anything is allocated.

The model is built on the meta device, where tensors have shapes but no numbers, and computes its bound there. What
autograd saves for the backward pass tells what a batch costs. In this way an architecture is described only once, in
`models/`. A recipe that needs more memory than the machine has is refused: without swap the system would kill the
process, and with swap the whole machine would stand still.
"""

import functools
import json
import math
import os
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from dvaepp.errors import UsageError
from dvaepp.recipes.models import ModelConfig

if TYPE_CHECKING:
    import torch

    from dvaepp.models.base import Model
    from dvaepp.recipes.schema import Recipe

# How many times each thing is held in memory at most.
COPIES = 12  # a parameter: 4 with its gradient and moments, 6 more while saving, and 2 transforms of it
SAVED = 2  # what autograd saves, and the gradients of it
COUPLINGS = 3  # the square matrix of a Boltzmann machine, when its chains are made
CHAINED = 6  # the chains, during a sweep
LAYERS = 3  # the widest layer, during evaluation
USUAL_IMAGES, USUAL_SIDE = 1000, 64  # smaller batches of smaller images are counted only when training starts
COUNTED = 2  # images that pass through the model on the meta device


class Cost(NamedTuple):
    """The number of parameters, and bytes: for the model, for each image of a batch, for evaluation, for each chain.

    `largest` is the name of the module that has the most parameters.
    """

    parameters: int
    model: int
    image: int
    evaluation: int
    chain: int
    largest: str

    def total(self, recipe: "Recipe") -> int:
        """Bytes that the whole of training and validation takes at most."""
        images = recipe.training.batch_size * recipe.training.importance_samples
        return self.model + max(images * self.image, self.evaluation) + recipe.chains.num_chains * self.chain


def cost(recipe: "Recipe", image_shape: Sequence[int] | None = None, images_too: bool = True) -> Cost:
    """What training `recipe` takes for images of this shape, by default of the shape of the paper's images.

    Counting what images cost takes most of the time, because they pass through the model. Without `images_too` this is
    left out for convolutional models, and images and evaluation cost nothing.
    """
    shape = tuple(image_shape or recipe.data.image_shape() or _example(recipe.model))
    counts = _extrapolated(recipe, shape, images_too or recipe.model.repeated is None)
    units, size = sum(recipe.model.unit_groups), 8 if recipe.training.precision == "float64" else 4
    square = COUPLINGS * units**2 if recipe.model.undirected else 0
    return Cost(
        counts.parameters.total(),
        size * (COPIES * (counts.parameters.total() + counts.others) + square),
        size * SAVED * math.ceil(counts.saved / COUNTED),
        size * LAYERS * counts.rows * math.ceil(counts.widest / COUNTED),
        size * CHAINED * units * recipe.chains.make().states_per_chain if recipe.model.undirected else 0,
        counts.parameters.most_common(1)[0][0],
    )


def _example(section: ModelConfig) -> tuple[int, ...]:
    """The shape of the paper's images, or what fits where the model takes smaller ones only."""
    channels, height, width = section.example_shape
    side = getattr(section, "image_size", max(height, width))
    return channels, min(side, height), min(side, width)


def check(
    recipe: "Recipe", image_shape: Sequence[int] | None = None, device: str = "cpu", images_too: bool = True
) -> None:
    """Refuse a recipe that takes more than the device has, naming the field to change and, for a count, what fits."""
    if not recipe.model.counted:
        return
    limit = memory(device)
    couplings = 4 * COPIES * recipe.model.num_couplings
    if couplings > limit:  # checked before the model is built, because building one on a graph lists its couplings
        raise UsageError(
            f"{recipe.model.num_couplings:,} couplings of the prior would take {couplings / 2**30:,.0f} GiB of memory, "
            f"more than the {limit / 2**30:.0f} that there are; {recipe.model.field_of('prior')} must be smaller"
        )
    c, training = cost(recipe, image_shape, images_too), recipe.training
    total, images = c.total(recipe), training.batch_size * training.importance_samples
    if total <= limit:
        return
    parts = {
        "model": c.model,
        "training.batch_size": images * c.image,
        "evaluation": c.evaluation,
        "chains.num_chains": recipe.chains.num_chains * c.chain,
    }
    field = max(parts, key=lambda name: parts[name])
    room = limit - total + parts[field]
    fits = {"training.batch_size": room // (c.image * training.importance_samples or 1)}
    fits["chains.num_chains"] = room // (c.chain or 1)
    if fits.get(field, 0) >= 2:
        remedy = f"{field} of at most {fits[field]} fits"
    else:
        estimated = recipe.estimator is not None and field == "training.batch_size"
        most = "estimator.options" if estimated else recipe.model.field_of(c.largest)
        remedy = f"most is for {most}: use fewer or smaller ones"
    raise UsageError(
        f"{c.parameters:,} parameters, batches of {images} and {recipe.chains.num_chains} chains would take "
        f"{total / 2**30:,.0f} GiB of memory, more than the {limit / 2**30:.0f} that there are; {remedy}"
    )


def check_early(recipe: "Recipe") -> None:
    """Refuse, as soon as a recipe is made, too many parameters and chains, and batches that are unusually large."""
    images = recipe.training.batch_size * recipe.training.importance_samples
    side = getattr(recipe.model, "image_size", 0)
    check(recipe, images_too=images > USUAL_IMAGES or side > USUAL_SIDE)


def memory(device: str = "cpu") -> int:
    """The bytes of memory of a GPU, or of the machine, or of the container that the process runs in."""
    if device.startswith("cuda"):
        import torch

        return torch.cuda.mem_get_info(device)[1]
    machine = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    try:
        return min(machine, int(Path("/sys/fs/cgroup/memory.max").read_text()))
    except (OSError, ValueError):  # another system, or "max"
        return machine


class _Counts(NamedTuple):
    """What was counted on the meta device: parameters by module, those of an estimator, the numbers that autograd saves
    and the most in one of its tensors, and how many rows evaluation takes at once."""

    parameters: Counter[str]
    others: int
    saved: int
    widest: int
    rows: int


def _extrapolated(recipe: "Recipe", shape: tuple[int, ...], images_too: bool) -> _Counts:
    """The counts of a model with many groups, extrapolated from those of the same model with 1, 2 and 3 groups.

    Each group reads all groups before it, so every sum over groups is a quadratic polynomial in their number, which
    three values determine. Building and running hundreds of groups would take a minute even on the meta device.
    """
    repeated = recipe.model.repeated
    rest = _rest(recipe) if images_too else ("", "", "")  # without images only the model decides the counts
    if repeated is None or getattr(recipe.model, repeated) <= 3:
        return _counted(recipe.model, *rest, shape, images_too)
    n = getattr(recipe.model, repeated)
    few = [_counted(recipe.model.model_copy(update={repeated: k}), *rest, shape, images_too) for k in (1, 2, 3)]

    def at_n(a: int, b: int, c: int) -> int:
        return a + (n - 1) * (b - a) + (n - 1) * (n - 2) // 2 * (c - 2 * b + a)

    parameters = {name: at_n(*(each.parameters[name] for each in few)) for name in few[0].parameters}
    saved = at_n(*(each.saved for each in few))
    widest = few[2].widest + (n - 3) * (few[2].widest - few[1].widest)  # a tensor of one group grows linearly
    return _Counts(Counter(parameters), few[0].others, saved, widest, few[0].rows)


def _rest(recipe: "Recipe") -> tuple[str, str, str]:
    """Objective, smoothing and estimator, which beside the model decide what a pass costs, as keys of a cache."""
    estimator = "" if recipe.estimator is None else recipe.estimator.model_dump_json()
    smoothing = json.dumps([recipe.smoothing.name, recipe.smoothing.at(0.0)[0]])
    return recipe.training.objective, smoothing, estimator


@functools.lru_cache(maxsize=256)
def _counted(
    section: ModelConfig, objective: str, smoothing: str, estimator: str, shape: tuple[int, ...], images_too: bool
) -> _Counts:
    import torch

    with torch.device("meta"):
        model = section.build(torch.full(shape, 0.5, dtype=torch.float32, device="meta"))
    x = torch.empty(COUNTED, *shape, dtype=torch.float32, device="meta")
    parameters = Counter[str]()
    for name, parameter in model.named_parameters():
        parameters[name.partition(".")[0]] += parameter.numel()
    if not images_too:
        return _Counts(parameters, 0, 0, 0, model.rows_at_once)
    own = {tensor.untyped_storage()._cdata for tensor in (*model.parameters(), *model.buffers())}
    saved: dict[int, torch.Tensor] = {}  # holds the tensors too, so that no address is used a second time

    def note(tensor: "torch.Tensor") -> "torch.Tensor":
        if tensor.untyped_storage()._cdata not in own:
            saved.setdefault(tensor.untyped_storage()._cdata, tensor)
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
        others, passing = _bound(model, x, objective, smoothing, estimator)
    sizes = [tensor.numel() for tensor in saved.values()]
    layers = [COUNTED * max(parameter.shape, default=1) for parameter in model.parameters()]
    return _Counts(parameters, others, sum(sizes) + passing, max(layers if estimator else sizes), model.rows_at_once)


def _bound(model: "Model", x: "torch.Tensor", objective: str, smoothing: str, estimator: str) -> tuple[int, int]:
    """Compute the bound once, by the model or by a gradient estimator.

    Returns two counts for an estimator: the numbers in its own parameters, and those in the largest tensor that it
    makes. Autograd may not save that one; an example is VIMCO's table of every sample against all others.
    """
    import torch

    from dvaepp import estimators
    from dvaepp import smoothing as smoothings
    from dvaepp.models.noise import BatchNoise
    from dvaepp.recipes.largest import Largest

    if not estimator:
        name, parameters = json.loads(smoothing)
        each: Any = smoothings.MEMBERS[name]
        model.terms(x, each(**parameters, validate_args=False), BatchNoise(None, x.device), objective=objective)
        return 0, 0
    given = json.loads(estimator)
    with torch.device("meta"), Largest() as largest:
        member: Any = estimators.MEMBERS[given["name"]]
        own = member(model.group_sizes, math.prod(model.image_shape), **given["options"])
        own.estimate(model.target(x), None)
    return sum(parameter.numel() for parameter in own.parameters()), largest.numbers
