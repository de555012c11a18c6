"""The section of a recipe that states its model. It builds the model, and answers questions about it before that.

There is one class for each kind of model, and nothing else in the library asks which kind it is.
"""

import math
import re
from abc import abstractmethod
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

from pydantic import AfterValidator, Field, model_validator

from dvaepp.errors import UsageError
from dvaepp.recipes.config import Config
from dvaepp.recipes.prior import PriorConfig

if TYPE_CHECKING:
    from typing import Self

    import torch
    from torch import Tensor

    from dvaepp.models.base import Model
    from dvaepp.recipes.schema import TrainingConfig

Units = Annotated[int, Field(ge=1, le=100_000)]
Likelihood = Literal["bernoulli", "logistic_mixture"]
Reading = Literal["bernoulli", "logistic_mixture", "gaussian"]
SHAPES: dict[str, tuple[int, int, int]] = {"bernoulli": (1, 28, 28), "logistic_mixture": (3, 32, 32)}


class ModelConfig(Config):
    """What the rest of the library may ask of a model's section before there is a model."""

    counted: ClassVar[bool] = True
    """Whether its parameters and its memory can be counted from the section alone."""
    repeated: ClassVar[str | None] = None
    """The field that says how many groups of equal networks there are, if each group reads all groups before it."""

    @property
    @abstractmethod
    def undirected(self) -> bool:
        """Whether its prior is a Boltzmann machine, with chains and a log Z."""

    @property
    def num_couplings(self) -> int:
        """How many numbers the couplings of an undirected prior take; 0 for a directed prior, or if nobody can say."""
        return 0

    @property
    @abstractmethod
    def unit_groups(self) -> list[int]:
        """Sizes of the groups of binary global units; empty where there are none."""

    @property
    def smoothed_groups(self) -> int:
        """Groups of units that are smoothed: global ones first, then local ones."""
        return len(self.unit_groups)

    @property
    @abstractmethod
    def expected_likelihood(self) -> Reading:
        """The kind of images that it takes."""

    @property
    def marginal_units(self) -> bool:
        """Whether some units are trained by the marginal KL (Eq. 5) whatever the objective is."""
        return False

    @property
    def kl_names(self) -> list[str]:
        """Names of the parts of the KL, in the order of `kl_per_group`: a Boltzmann prior has one for all its units."""
        return ["z"] if self.undirected else [f"z{a + 1}" for a in range(len(self.unit_groups))]

    @property
    def example_shape(self) -> tuple[int, int, int]:
        """The shape of the paper's images of its kind, for a summary of the model when the data is not known."""
        return SHAPES[self.expected_likelihood]

    def field_of(self, module: str) -> str:
        """The path of the field that decides the size of one of the model's modules, for messages."""
        return f"model.{module}"

    def for_images(self, likelihood: Reading | None, resize: str | None) -> "Self":
        """The section for a user's own images, which are read for `likelihood`, or by default for the model's own."""
        return self

    @abstractmethod
    def check_training(self, training: "TrainingConfig", estimated: bool) -> None:
        """Refuse training that this kind of model cannot do; `estimated` says that a gradient estimator trains it."""

    def misfit(self, shape: tuple[int, int, int], pixels: int | None = None) -> str:
        """Why the model cannot take images of this shape, or "" if it can; `pixels` is the number in saved weights."""
        return ""

    def check_buildable(self) -> None:
        """Refuse a model that only its user's program can make."""

    @abstractmethod
    def build(self, train_mean: "Tensor", generator: "torch.Generator | None" = None) -> "Model":
        """The model, untrained, for images with this mean (channels, height, width)."""


def _refuse_gaussian(likelihood: Reading | None) -> None:
    if likelihood == "gaussian":
        raise ValueError(
            "data.likelihood 'gaussian' is for a dvaepp.BinaryVAE of one's own; the models of recipes take bernoulli "
            "or logistic_mixture"
        )


class FeedForwardConfig(ModelConfig):
    """The models of Sec. 7.1 and 7.2."""

    kind: Literal["feedforward"] = "feedforward"
    groups: Annotated[tuple[Units, ...], Field(min_length=1, max_length=64)] = (200,)
    hidden: Annotated[tuple[Units, ...], Field(max_length=16)] = ()
    prior: PriorConfig = PriorConfig()
    batch_norm: bool = True
    centered_code: bool = False

    @property
    def undirected(self) -> bool:
        return self.prior.kind == "undirected"

    @property
    def num_couplings(self) -> int:
        return self.prior.num_couplings(sum(self.groups))

    @property
    def unit_groups(self) -> list[int]:
        return list(self.groups)

    @property
    def expected_likelihood(self) -> Reading:
        return "bernoulli"

    def field_of(self, module: str) -> str:
        return "model.hidden" if self.hidden and max(self.hidden) > max(self.groups) else "model.groups"

    def check_training(self, training: "TrainingConfig", estimated: bool) -> None:
        if sum(self.groups) < self.prior.min_units:
            raise ValueError(f"model.groups: the prior {self.prior.name} needs at least {self.prior.min_units} units")
        if self.hidden and self.batch_norm and training.batch_size * training.importance_samples < 2:
            raise ValueError("training.batch_size must be at least 2 where hidden layers have batch norm")

    def for_images(self, likelihood: Reading | None, resize: str | None) -> "Self":
        _refuse_gaussian(likelihood)
        if likelihood == "logistic_mixture":
            raise ValueError(
                "data.likelihood 'logistic_mixture' needs a convolutional model, such as those of the table3 "
                "recipes; a feed-forward one takes data.likelihood=bernoulli, which turns images to grey"
            )
        return self

    def misfit(self, shape: tuple[int, int, int], pixels: int | None = None) -> str:
        return "" if pixels in (None, math.prod(shape)) else f"its model has {pixels} pixels"

    def build(self, train_mean: "Tensor", generator: "torch.Generator | None" = None) -> "Model":
        from dvaepp.models.feedforward import FeedForward

        return FeedForward(
            train_mean,
            self.groups,
            hidden=self.hidden,
            prior=self.prior.name,
            prior_options=self.prior.parameters,
            batch_norm=self.batch_norm,
            centered_code=self.centered_code,
            generator=generator,
        )


def _block(text: str) -> str:
    if not re.fullmatch(r"[1-9][0-9]{0,4}[du]?", text):
        raise ValueError(
            f"a block is a number of filters, with d or u where it halves or doubles its map: not {text!r}"
        )
    return text


BlockName = Annotated[str, AfterValidator(_block)]
Blocks = Annotated[tuple[BlockName, ...], Field(min_length=1, max_length=32)]
Hidden = Annotated[tuple[BlockName, ...], Field(max_length=32)]


class ConvolutionalConfig(ModelConfig):
    """DVAE++ (Sec. 6). Networks are lists of blocks as in the paper's Table 4: "32d" has 32 filters and halves the map,
    "32u" doubles it.

    `posterior` and `prior`, the networks q and p of a local group, leave out their last block, whose width follows from
    the number of units.
    """

    repeated: ClassVar[str | None] = "local_groups"
    kind: Literal["convolutional"] = "convolutional"
    image_size: Annotated[int, Field(ge=2, le=1024)] = 32
    down1: Blocks = ("32d", "32", "64d", "64", "128d")
    down2: Blocks = ("256d", "512d")
    dense: Annotated[tuple[Units, ...], Field(max_length=16)] = ()
    upsample: Blocks = ("128u", "128u")
    posterior: Hidden = ("32", "32", "32", "32")
    prior: Hidden = ("32", "32")
    context: Blocks = ("16",)
    upsamples: Annotated[tuple[Blocks, ...], Field(max_length=8)] = (("16u", "16"), ("16u", "8"), ("8u",))
    input_filters: Annotated[int, Field(ge=1, le=10_000)] = 32
    global_kind: Literal["rbm", "bernoulli", "normal", "none"] = "rbm"
    global_units: Annotated[int, Field(ge=2, le=10_000)] = 16
    global_groups: Annotated[int, Field(ge=1, le=64)] = 4
    local_kind: Literal["normal", "bernoulli"] = "normal"
    local_channels: Annotated[int, Field(ge=1, le=1000)] = 32
    local_groups: Annotated[int, Field(ge=1, le=128)] = 16
    conditional: bool = True
    likelihood: Likelihood = "bernoulli"

    @property
    def undirected(self) -> bool:
        return self.global_kind == "rbm"

    @property
    def num_couplings(self) -> int:
        return PriorConfig().num_couplings(self.global_units) if self.undirected else 0

    @property
    def unit_groups(self) -> list[int]:
        binary = self.global_kind in ("rbm", "bernoulli")
        return [self.global_units // self.global_groups] * self.global_groups if binary else []

    @property
    def smoothed_groups(self) -> int:
        return len(self.unit_groups) + (self.local_groups if self.local_kind == "bernoulli" else 0)

    @property
    def expected_likelihood(self) -> Reading:
        return self.likelihood

    @property
    def marginal_units(self) -> bool:
        return self.local_kind == "bernoulli"

    @property
    def kl_names(self) -> list[str]:
        groups = 0 if self.global_kind == "none" else self.global_groups
        own = ["z"] if self.undirected else [f"z{a + 1}" for a in range(groups)]
        return own + [f"h{j + 1}" for j in range(self.local_groups)]

    def field_of(self, module: str) -> str:
        local = "model.local_groups, local_channels, posterior and prior"
        fields = {"encoders": "dense", "decoder": "upsamples", "prior": "global_units"}
        return local if module in ("q", "p") else f"model.{fields.get(module, module)}"

    def check_training(self, training: "TrainingConfig", estimated: bool) -> None:
        if training.objective == "joint" and not estimated:
            raise ValueError("a convolutional model trains its Bernoulli units with the marginal objective")
        if estimated:
            raise ValueError("gradient estimators train feed-forward models; a convolutional one needs a smoothing")
        if training.batch_size < 2:
            raise ValueError("training.batch_size must be at least 2 for a convolutional model: it has batch norm")

    def for_images(self, likelihood: Reading | None, resize: str | None) -> "Self":
        _refuse_gaussian(likelihood)
        if resize is not None and max(map(int, resize.split("x"))) > self.image_size:
            raise ValueError(f"data.resize is {resize}; model.image_size takes at most {self.image_size} pixels")
        return self.model_copy(update={"likelihood": likelihood or self.likelihood})

    def misfit(self, shape: tuple[int, int, int], pixels: int | None = None) -> str:
        side = self.image_size
        fits = shape[0] <= 3 and max(shape[1:]) <= side
        return "" if fits else f"its model takes at most 3 channels of {side} x {side} (model.image_size)"

    def build(self, train_mean: "Tensor", generator: "torch.Generator | None" = None) -> "Model":
        from dvaepp.models.architecture import Architecture
        from dvaepp.models.dvaepp import DVAE

        given = {name: value for name, value in self if name != "kind"}  # every other field is an argument
        architecture = Architecture(**{name: given.pop(name) for name in Architecture._fields})
        return DVAE(train_mean.shape, architecture, **given, generator=generator)

    @model_validator(mode="after")
    def _reachable(self) -> "ConvolutionalConfig":
        if self.global_kind != "none" and self.global_units % self.global_groups:
            fits = [n for n in range(1, min(self.global_units, 64) + 1) if self.global_units % n == 0]
            raise ValueError(
                f"{self.global_groups} groups do not divide {self.global_units} global units; "
                f"global_groups may be {', '.join(map(str, fits))}"
            )
        size = self._walk("down1", self.image_size, self.down1)
        if self.global_kind != "none":
            top = self._walk("down2", size, self.down2)
            if top != 1:
                missing = top.bit_length() - 1
                raise ValueError(
                    f"down2 must end at 1 x 1, and ends at {top} x {top}: {missing} more of its blocks need a d"
                )
            up = self._walk("upsample", 1, self.upsample)
            if up != size:
                raise ValueError(f"upsample must end where down1 does, at {size} x {size}, and ends at {up} x {up}")
        for name, blocks in (("posterior", self.posterior), ("prior", self.prior)):
            if any(not block.isdigit() for block in blocks):
                raise ValueError(f"{name} keeps the size of its map: no block of it may end in d or u")
        scale = self.image_size >> len(self.upsamples)
        if scale << len(self.upsamples) != self.image_size or scale < 1:
            raise ValueError(
                f"image_size {self.image_size} cannot be halved {len(self.upsamples)} times: "
                "give fewer upsamples, or an image_size with a higher power of 2"
            )
        size = self._walk("context", size, self.context)
        if size not in (scale, 2 * scale):
            raise ValueError(f"context must end at {scale} or {2 * scale} pixels, and ends at {size}")
        for index, blocks in enumerate(self.upsamples):
            scale, size = 2 * scale, self._walk(f"upsamples.{index}", size, blocks)
            if size != scale:
                raise ValueError(f"upsamples.{index} must end at {scale} x {scale}, and ends at {size} x {size}")
        return self

    @staticmethod
    def _walk(name: str, size: int, blocks: tuple[str, ...]) -> int:
        for block in blocks:
            if block.endswith("d"):
                if size % 2:
                    raise ValueError(f"{name}: {block} cannot halve a map of {size} x {size}; use one d less")
                size //= 2
            elif block.endswith("u"):
                size *= 2
        return size


class OwnConfig(ModelConfig):
    """The description of a model that a user's program has made, in names and shapes; it cannot build the model."""

    counted: ClassVar[bool] = False
    kind: Literal["own"] = "own"
    model_class: Annotated[str, Field(max_length=200)]
    group_sizes: Annotated[tuple[Units, ...], Field(max_length=10_000)]
    binary_code: bool = True
    boltzmann: bool = False
    terms: Annotated[tuple[str, ...], Field(max_length=10_000)] = ()
    smoothed: Annotated[int, Field(ge=0, le=10_000)] = 0
    reads: Reading = "bernoulli"
    tensors: dict[str, str] = {}

    @classmethod
    def of(cls, model: "Model") -> "OwnConfig":
        """The description of a model that is prepared for its data."""
        return cls(
            model_class=type(model).__qualname__,
            group_sizes=tuple(model.group_sizes),
            binary_code=model.binary_code,
            boltzmann=model.boltzmann is not None,
            terms=tuple(model.kl_names()),
            smoothed=model.num_smoothed_groups,
            reads=model.reads,
            tensors={name: " x ".join(map(str, value.shape)) or "1" for name, value in model.state_dict().items()},
        )

    @property
    def undirected(self) -> bool:
        return self.boltzmann

    @property
    def unit_groups(self) -> list[int]:
        return list(self.group_sizes) if self.binary_code else []

    @property
    def smoothed_groups(self) -> int:
        return self.smoothed

    @property
    def expected_likelihood(self) -> Reading:
        return self.reads

    @property
    def kl_names(self) -> list[str]:
        return list(self.terms)

    def check_training(self, training: "TrainingConfig", estimated: bool) -> None:
        if estimated:
            raise ValueError(
                "gradient estimators train the feed-forward models of recipes; this model needs a smoothing"
            )

    def check_buildable(self) -> None:
        raise UsageError(
            f"the run holds a {self.model_class} of one's own, whose program it does not store: in Python, "
            "dvaepp.load(run, model=build()), and likewise train(..., resume=True), evaluate, report and viewer.view"
        )

    def build(self, train_mean: "Tensor", generator: "torch.Generator | None" = None) -> "Model":
        self.check_buildable()
        raise AssertionError("a model of one's own cannot be built")
