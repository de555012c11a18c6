"""What a recipe takes before anything is built: parameters, and the memory of training and evaluation.

Parameters are counted exactly; a test compares them with those of the models. Memory is an estimate from above: copies
of each parameter, and copies of each number that a layer reads or writes, as measured on models of every kind. A recipe
beyond `MEMORY` is refused: without swap the system would end it, with swap the machine would stand still.
"""

import inspect
from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

from dvaepp.errors import UsageError
from dvaepp.recipes.models import ModelConfig
from dvaepp.recipes.schema import ConvolutionalConfig, FeedForwardConfig, Recipe

MEMORY = 16 * 2**30  # bytes: two thirds of a machine with 24 GB; the paper's largest model, on CIFAR10, takes 7 GiB
COPIES = 10  # of a parameter: itself, gradient, two moments, and all but the gradient twice while it is saved
TRANSFORMED = 2  # more of a 3x3 kernel: networks/winograd.py makes 36 numbers of 9, and their gradients, in a step
TOUCHED = 3  # copies, in a step, of what a layer reads and writes
COUPLINGS = 3  # copies of an RBM's square matrix when its chains are made
CHAINED = 6  # copies of the chains in a sweep
ENCODED = 100  # images that evaluation encodes at once, and the rows that it decodes (evaluation/), layer by layer
DECODED = {"feedforward": 2048, "convolutional": 400}
RATIO = 4  # of squeeze and excitation
OUTPUTS = {("bernoulli", 1): 1, ("logistic_mixture", 1): 30, ("logistic_mixture", 3): 100}  # numbers for a pixel
GREY = (1, 28, 28)


class Cost(NamedTuple):
    """A number of parameters, then bytes: of the model, of an image in a batch, of evaluation, of a chain.

    `fields` names what takes most of the model, of an image and of evaluation.
    """

    parameters: int
    model: int
    image: int
    evaluation: int
    chain: int
    fields: dict[str, str]


def cost(recipe: Recipe, image_shape: Sequence[int] | None = None) -> Cost:
    """What training `recipe` on images of this shape takes; a convolutional model pads all to its `image_size`."""
    model = recipe.model
    if isinstance(model, ConvolutionalConfig):
        tally, units = _convolutional(model, image_shape), model.global_units
    else:
        assert isinstance(model, FeedForwardConfig)  # `check` lets models of one's own pass
        shape = GREY if image_shape is None else image_shape
        tally, units = _feedforward(recipe, model, shape[0] * shape[1] * shape[2]), sum(model.groups)
    size = 8 if recipe.training.precision == "float64" else 4
    undirected = model.undirected
    if undirected:
        numbers = model.num_couplings + units
        tally.parameters["units"] += numbers
        tally.stored["units"] += COPIES * numbers + COUPLINGS * units * units
    return Cost(
        tally.parameters.total(),
        size * tally.stored.total(),
        size * tally.touched.total(),
        size * tally.evaluated.most_common(1)[0][1],
        size * CHAINED * units * recipe.chains.make().states_per_chain if undirected else 0,
        {name: sums.most_common(1)[0][0] for name, sums in tally.sums().items()},
    )


def check(recipe: Recipe, image_shape: Sequence[int] | None = None) -> None:
    """Refuse a recipe that takes more than `MEMORY`, naming the field to change and, for a count, what would fit."""
    if not recipe.model.counted:
        return
    c, training = cost(recipe, image_shape), recipe.training
    images = training.batch_size * training.importance_samples
    parts = {
        "model": c.model,
        "training.batch_size": images * c.image,
        "evaluation": c.evaluation,
        "chains.num_chains": recipe.chains.num_chains * c.chain,
    }
    total = c.model + max(parts["training.batch_size"], parts["evaluation"]) + parts["chains.num_chains"]
    if total <= MEMORY:
        return
    field = max(parts, key=lambda name: parts[name])
    room = MEMORY - total + parts[field]
    fits = {"training.batch_size": room // (c.image * training.importance_samples or 1)}
    fits["chains.num_chains"] = room // (c.chain or 1)
    if fits.get(field, 0) >= 2:
        remedy = f"{field} of at most {fits[field]} fits"
    else:
        remedy = f"most is for {_named(c.fields.get(field, 'units'), recipe.model)}: use fewer or smaller ones"
        if isinstance(recipe.model, ConvolutionalConfig) and field != "model":
            remedy += ", or a smaller image_size"
    raise UsageError(
        f"{c.parameters:,} parameters, batches of {images} and {recipe.chains.num_chains} chains would take "
        f"{total / 2**30:,.0f} GiB of memory, more than the {MEMORY / 2**30:.0f} that are allowed; {remedy}"
    )


def _named(field: str, model: ModelConfig) -> str:
    names = {
        "units": "model.groups" if isinstance(model, FeedForwardConfig) else "model.global_units",
        "options": "estimator.options",
        "local": "model.local_groups, local_channels, posterior and prior",
    }
    return names.get(field, f"model.{field}")


class _Tally:
    """By field of the model: `stored` counts parameters with their copies, `touched` numbers per image in a step,
    `evaluated` those of the widest layer in evaluation."""

    def __init__(self, kind: str) -> None:
        self.rows = DECODED[kind]
        self.parameters: Counter[str] = Counter()
        self.stored: Counter[str] = Counter()
        self.touched: Counter[str] = Counter()
        self.evaluated: Counter[str] = Counter()

    def sums(self) -> dict[str, Counter[str]]:
        return {"model": self.stored, "training.batch_size": self.touched, "evaluation": self.evaluated}

    def add(self, field: str, parameters: int, touched: int, copies: int = COPIES) -> None:
        self.parameters[field] += parameters
        self.stored[field] += copies * parameters
        self.touched[field] += touched
        rows = ENCODED if field.startswith("down") else self.rows
        self.evaluated[field] = max(self.evaluated[field], rows * touched)

    def dense(self, field: str, sizes: Sequence[int], batch_norm: bool = False, times: int = 1) -> None:
        """Linear maps between `sizes`; batch norm takes the biases of hidden layers and has two numbers a unit."""
        for index, (inputs, outputs) in enumerate(zip(sizes, sizes[1:], strict=False)):
            hidden = index < len(sizes) - 2
            extra = 2 * outputs if hidden and batch_norm else outputs
            self.add(field, inputs * outputs + extra, times * TOUCHED * (inputs + outputs))

    def conv(self, field: str, inputs: int, outputs: int, before: int, after: int, kernel: int = 3) -> None:
        """A convolution from a map of `before` pixels a side to one of `after`."""
        parameters = kernel**2 * inputs * outputs + outputs
        copies = COPIES + (TRANSFORMED if kernel == 3 else 0)
        touched = inputs * before**2 + outputs * after**2
        self.add(field, parameters, (TOUCHED if kernel == 3 else 2) * touched, copies)

    def chain(
        self, field: str, inputs: int, blocks: Sequence[str], size: int, project: bool = False
    ) -> tuple[int, int]:
        """Residual blocks (networks/residual.py) from a map of `size`; the channels and the size they end at."""
        for index, block in enumerate(blocks):
            outputs = int(block.rstrip("du"))
            after = size // 2 if block.endswith("d") else 2 * size if block.endswith("u") else size
            self.conv(field, inputs, outputs, size, after)
            self.conv(field, outputs, outputs, after, after)
            squeezed = max(1, outputs // RATIO)
            self.add(field, 2 * outputs * squeezed + outputs + squeezed, 2 * outputs)
            if inputs != outputs or not block.isdigit() or (project and index == 0):
                self.conv(field, inputs, outputs, size, after, kernel=1)
            inputs, size = outputs, after
        return inputs, size


def _feedforward(recipe: Recipe, model: FeedForwardConfig, pixels: int) -> _Tally:
    tally, times = _Tally(model.kind), 1
    before = [sum(model.groups[:a]) for a in range(len(model.groups))]
    if recipe.estimator is not None:
        times = _estimator(tally, recipe, before, pixels)
    field = "hidden" if model.hidden and max(model.hidden) > max(model.groups) else "groups"

    def dense(inputs: int, outputs: int) -> None:
        tally.dense(field, (inputs, *model.hidden, outputs), model.batch_norm, times)

    for earlier, size in zip(before, model.groups, strict=True):
        dense(pixels + earlier, size)
    dense(sum(model.groups), pixels)
    if not model.undirected:  # as if each group but the first had a network: other directed priors are smaller
        tally.add("groups", model.groups[0], TOUCHED * model.groups[0])
        for earlier, size in list(zip(before, model.groups, strict=True))[1:]:
            dense(earlier, size)
    return tally


def _estimator(tally: _Tally, recipe: Recipe, before: Sequence[int], pixels: int) -> int:
    """Count an estimator's networks and draws; return how often it runs the model on an image."""
    from dvaepp.estimators import MEMBERS

    assert recipe.estimator is not None and isinstance(recipe.model, FeedForwardConfig)
    defaults = {name: p.default for name, p in inspect.signature(MEMBERS[recipe.estimator.name]).parameters.items()}
    options = defaults | recipe.estimator.options
    hidden = int(options.get("hidden", 0))
    for earlier, size in zip(before, recipe.model.groups, strict=True):
        inputs = pixels + earlier + size
        tally.stored["options"] += COPIES * hidden * (inputs + 2)
        tally.touched["options"] += TOUCHED * hidden
    samples = int(options.get("num_samples", 1))
    tally.touched["options"] += TOUCHED * samples**2  # VIMCO's table of each sample against the others
    tally.touched["options"] += TOUCHED * int(options.get("num_draws", 0)) * sum(recipe.model.groups)
    return max(samples, 2 * (len(before) + 1))  # a branch for each layer, and its antithetic one


def _convolutional(model: ConvolutionalConfig, image_shape: Sequence[int] | None) -> _Tally:
    tally = _Tally(model.kind)
    most = 3 if model.likelihood == "logistic_mixture" else 1  # before images of one's own are read
    channels = most if image_shape is None else image_shape[0]
    pixels = OUTPUTS[model.likelihood, channels]
    tally.add("down1", 2 * channels, 0)
    encoded, size = tally.chain("down1", channels, model.down1, model.image_size)
    tally.add("down1", 2 * encoded, 0)
    up = int(model.upsample[-1].rstrip("du"))
    if model.global_kind == "none":
        tally.add("upsample", up * size**2, TOUCHED * up * size**2)
    else:
        _global(tally, model, encoded, size)
    units = model.local_channels * (2 if model.local_kind == "normal" else 1)
    for shared, blocks in ((encoded + up, model.posterior), (up, model.prior)):
        for group in range(model.local_groups):
            inputs = shared + group * model.local_channels
            tally.chain("local", inputs, (*blocks, str(units)), size, project=True)
    width, size = tally.chain("context", up + model.local_groups * model.local_channels, model.context, size)
    scales = [model.image_size >> i for i in reversed(range(len(model.upsamples) + 1))]
    for index, scale in enumerate(scales):
        if index > 0:
            width, size = tally.chain("upsamples", width, model.upsamples[index - 1], size)
        if model.conditional or scale == model.image_size:
            tally.conv("upsamples", width, pixels, size, scale)
        if model.conditional and scale != model.image_size:
            letter = "u" if size == 2 * scale else ""
            tally.chain("input_filters", channels, [f"{model.input_filters}{letter}"], scale)
            width += model.input_filters
    return tally


def _global(tally: _Tally, model: ConvolutionalConfig, encoded: int, size: int) -> None:
    top, _ = tally.chain("down2", encoded, model.down2, size)
    tally.add("down2", 2 * top, 0)
    group = model.global_units // model.global_groups
    per_unit = 2 if model.global_kind == "normal" else 1
    for index in range(model.global_groups):
        tally.dense("dense", (top + index * group, *model.dense, per_unit * group))
    tally.chain("upsample", model.global_units, model.upsample, 1)
    if model.global_kind == "bernoulli":
        tally.add("global_units", model.global_units, model.global_units)
