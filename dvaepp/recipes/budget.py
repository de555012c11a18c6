"""What a recipe takes before anything is allocated: parameters, and the memory of training and evaluation.

The model itself is asked. It is built on the meta device, where tensors have shapes and no numbers, and takes one pass
through its bound there; what autograd saves for the backward pass is what a batch costs. So an architecture is
described once, in `models/`. A recipe that takes more than the memory there is gets refused: without swap the system
would end it, with swap the machine would stand still.
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

COPIES = 12  # of a parameter: itself, gradient, two moments, twice all but the gradient while it is saved, transforms
SAVED = 2  # copies of what autograd saves: the gradients beside it
COUPLINGS = 3  # copies of a Boltzmann machine's square matrix when its chains are made
CHAINED = 6  # copies of the chains in a sweep
LAYERS = 3  # copies of the widest layer that evaluation holds at a time
USUAL_IMAGES, USUAL_SIDE = 1000, 64  # up to which a recipe's images are left to the start of training
COUNTED = 2  # images that pass through the model on the meta device


class Cost(NamedTuple):
    """A number of parameters, then bytes: of the model, of an image in a batch, of evaluation, of a chain.

    `largest` names the module that has most of the parameters.
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
    """What training `recipe` on images of this shape takes; without one, on images of the paper's.

    Without `images_too` no image passes through a convolutional model, which takes most of the time of counting, and
    images and evaluation cost nothing.
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
    if couplings > limit:  # said before the model is built: a machine on a graph lists its couplings on the way
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
    """What can be refused as soon as a recipe is made: parameters and chains, and batches of unusual size."""
    images = recipe.training.batch_size * recipe.training.importance_samples
    side = getattr(recipe.model, "image_size", 0)
    check(recipe, images_too=images > USUAL_IMAGES or side > USUAL_SIDE)


def memory(device: str = "cpu") -> int:
    """Bytes of a device: of a GPU what it has, else what the machine has, or less where a container is given less."""
    if device.startswith("cuda"):
        import torch

        return torch.cuda.mem_get_info(device)[1]
    machine = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    try:
        return min(machine, int(Path("/sys/fs/cgroup/memory.max").read_text()))
    except (OSError, ValueError):  # another system, or "max"
        return machine


class _Counts(NamedTuple):
    """Numbers in parameters by module, in an estimator's own, saved by autograd, in its widest tensor; rows at once."""

    parameters: Counter[str]
    others: int
    saved: int
    widest: int
    rows: int


def _extrapolated(recipe: "Recipe", shape: tuple[int, ...], images_too: bool) -> _Counts:
    """The counts of a model whose many like groups grow evenly: a quadratic through those with 1, 2 and 3 of them.

    Each group reads all that came before it, so that every sum over groups is a quadratic in their number. Hundreds of
    them would take a minute to build and run even on the meta device.
    """
    repeated = recipe.model.repeated
    rest = _rest(recipe) if images_too else ("", "", "")  # nothing but the model counts where no image passes
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
    """What decides the pass through the bound beside the model, as keys of a cache."""
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
    saved: dict[int, torch.Tensor] = {}  # kept, so that no storage is freed and its address taken by another

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
    """One pass through the bound, or through that of an estimator.

    Of an estimator: the numbers in its own parameters, and in its largest tensor that no gradient needs, such as the
    table of each of VIMCO's samples against all others.
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
