"""The recipe: a tree of frozen sections with everything that decides a run, stored as JSON beside the run."""

import dataclasses
import inspect
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, Discriminator, Field, Tag, model_validator

from dvaepp.errors import UsageError
from dvaepp.recipes.config import Config
from dvaepp.recipes.models import ConvolutionalConfig as ConvolutionalConfig
from dvaepp.recipes.models import FeedForwardConfig as FeedForwardConfig
from dvaepp.recipes.models import OwnConfig as OwnConfig
from dvaepp.recipes.prior import A
from dvaepp.recipes.smoothing import AnnealedConfig as AnnealedConfig
from dvaepp.recipes.smoothing import SmoothingConfig as SmoothingConfig

if TYPE_CHECKING:
    from torch import Tensor

    from dvaepp.data import Dataset
    from dvaepp.samplers import Sampler

Fraction = Annotated[float, Field(ge=0, le=1)]


def within(name: str, value: int, most: int) -> int:
    """Refuse an argument that would make a huge list before pydantic checks the field that the list is for."""
    if not 1 <= value <= most:
        raise UsageError(f"{name} must be from 1 to {most}, got {value}")
    return value


def _printable(text: str) -> str:
    if not text or not text.isprintable():
        raise ValueError("must have letters, and none that cannot be printed")
    return text


def _file_name(text: str) -> str:
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}", text):
        raise ValueError("is part of a folder's name: up to 100 letters, digits, dots, dashes and underscores")
    return text


def _absolute(path: str) -> str:
    """The path from the root, because a run may be resumed and evaluated from another folder."""
    return os.path.abspath(os.path.expanduser(path))


def _size(given: Any) -> str | None:
    from dvaepp.data.reading import as_size

    return None if given is None else str(as_size(given if isinstance(given, int | str) else str(given)))


class DataConfig(Config):
    """A named data set, or the user's own images under `path`.

    The other fields say how the user's own images are read: for which likelihood (by default the model's), at which
    size ("HEIGHTxWIDTH"), and which number is white (`dvaepp.data.reading` has the rules). `memory` says that the data
    was given in Python, as a tensor or an array, and that the run knows only its `name`.
    """

    name: Annotated[str, AfterValidator(_printable), Field(max_length=100)] = "mnist_static"
    path: Annotated[str, AfterValidator(_printable), Field(max_length=1000), AfterValidator(_absolute)] | None = None
    likelihood: Literal["bernoulli", "logistic_mixture", "gaussian"] | None = None
    resize: Annotated[str | None, BeforeValidator(_size)] = None
    white: Annotated[float, Field(gt=0, le=1e9)] | None = None
    memory: bool = False

    @model_validator(mode="after")
    def _known(self) -> "DataConfig":
        if self.path is None and not self.memory:
            self.image_shape()
            given = [name for name in ("likelihood", "resize", "white") if getattr(self, name) is not None]
            if given:
                raise ValueError(f"{given[0]} is for images of one's own, and {self.name} has its own: give data.path")
        return self

    def load(self, data_dir: Path | str | None = None) -> "Dataset":
        """Read the data set."""
        from dvaepp.data import load

        if self.memory:
            raise UsageError(f"the data {self.name!r} of this run was given in Python: give it again, data=...")

        likelihood = self.likelihood or "bernoulli"
        return load(self.name, data_dir, self.path, likelihood=likelihood, resize=self.resize, white=self.white)

    def image_shape(self) -> tuple[int, int, int] | None:
        """Channels, height and width; of one's own images not known before they are read."""
        from dvaepp.data import image_shape

        return image_shape(self.name) if self.path is None and not self.memory else None

    def read_images(self, path: Path | str) -> "Tensor":
        """Other images at `path`, all of them in their order, as a model trained on this data sees them."""
        from dvaepp.data import own
        from dvaepp.data.parts import Options

        shape = self.image_shape()
        colour = shape is not None and shape[0] == 3
        likelihood = "logistic_mixture" if colour else self.likelihood or "bernoulli"
        return own.read_images(Path(path), Options.of(likelihood, self.resize, self.white))


def _kind(value: Any) -> str:
    return str(value.get("kind", "feedforward") if isinstance(value, dict) else getattr(value, "kind", ""))


AnyModel = Annotated[
    Annotated[FeedForwardConfig, Tag("feedforward")]
    | Annotated[ConvolutionalConfig, Tag("convolutional")]
    | Annotated[OwnConfig, Tag("own")],
    Discriminator(_kind),
]


class DecayConfig(Config):
    """Multiply the rate by `factor` once the share `at` of the steps is done."""

    at: Fraction
    factor: Annotated[float, Field(gt=0, le=1)]


class PlateauConfig(Config):
    """Multiply the rate by `factor` after `patience` validations without a better validation bound."""

    factor: Annotated[float, Field(gt=0, lt=1)] = 0.5
    patience: Annotated[int, Field(ge=1, le=10**9)] = 10


class OptimizerConfig(Config):
    """Adam or AdaMax, and their schedule; during the share `warmup` of the steps the rate is a tenth of itself."""

    name: Literal["adam", "adamax"] = "adam"
    learning_rate: Annotated[float, Field(gt=0, le=1)] = 3e-3
    epsilon: Annotated[float, Field(ge=1e-20, le=1)] = 1e-3  # below 1e-45 it is 0 in float32, and an update 0 / 0
    beta2: Annotated[float, Field(ge=0, lt=1)] = 0.999
    weight_decay: Annotated[float, Field(ge=0, le=1000)] = 0.0
    warmup: Fraction = 0.0
    decays: Annotated[tuple[DecayConfig, ...], Field(max_length=100)] = ()
    plateau: PlateauConfig | None = None


def _member(kind: str, name: str, members: Mapping[str, Any]) -> Any:
    if name not in members:
        raise ValueError(f"no {kind} called {name[:40]!r}; there are {', '.join(sorted(members))}")
    return members[name]


class ChainsConfig(Config):
    """Persistent chains behind the gradient of log Z (App. E), and the sampler that moves them, by its file's stem.

    Of the samplers, `gibbs` keeps its chains from step to step, `tempering` keeps them at all its temperatures, and
    `dimod` (simulated annealing, or another sampler of dwave-samplers) draws them afresh.
    """

    num_chains: Annotated[int, Field(ge=1, le=1_000_000)] = 100
    num_sweeps: Annotated[int, Field(ge=1, le=100_000)] = 40
    sampler: str = "gibbs"
    options: dict[str, int | str] = {}

    @model_validator(mode="after")
    def _makeable(self) -> "ChainsConfig":
        from dvaepp.samplers import MEMBERS

        known = {field.name: field.default for field in dataclasses.fields(_member("sampler", self.sampler, MEMBERS))}
        simple = [name for name, default in known.items() if isinstance(default, int | str)]
        for key, value in self.options.items():
            if key not in simple:
                raise ValueError(f"options: {self.sampler} takes {' and '.join(simple) or 'none'}, not {key[:40]!r}")
            if type(value) is not type(known[key]):
                raise ValueError(f"options.{key} is {A[type(known[key])]}, not {str(value)[:40]!r}")
        self.make()
        return self

    def make(self) -> "Sampler":
        """The sampler with its options."""
        from dvaepp.samplers import MEMBERS

        member: Any = MEMBERS[self.sampler]
        return member(**self.options)


Objective = Literal["boltzmann", "rolfe", "relaxed", "gaussian_integral", "joint", "marginal"]
UNDIRECTED = ("boltzmann", "rolfe", "relaxed", "gaussian_integral")
WEIGHTS = ("relaxed", "gaussian_integral", "marginal")  # objectives that can be trained with several importance samples


class TrainingConfig(Config):
    """How long and towards what a model trains, how often it validates, and when it saves.

    A checkpoint is written at each validation and after `checkpoint_minutes`; 0 means after every step.
    `validate_every` is a share of the steps. None leaves it to `training.interval`, which lets validations take about a
    tenth of the time and makes at most one after every 2 % of the steps. `average` is the share of the steps over which
    a second set of weights is averaged (see `training.average`), e.g. 0.05; with None, as in the paper, there is none.
    `patience` ends a run after so many validations without a better one, counted once the KL has its full weight.
    """

    steps: Annotated[int, Field(ge=1, le=10**9)] = 1_000_000
    batch_size: Annotated[int, Field(ge=1, le=100_000)] = 100
    objective: Objective = "boltzmann"
    importance_samples: Annotated[int, Field(ge=1, le=1000)] = 1
    kl_warmup: Fraction = 0.3
    kl_balance: bool = False
    validate_every: Annotated[float, Field(gt=0, le=1)] | None = None
    validation_samples: Annotated[int, Field(ge=1, le=100_000)] | None = 100
    validation_images: Annotated[int, Field(ge=1, le=10**9)] | None = 1000
    seed: Annotated[int, Field(ge=0, lt=2**63)] = 0
    tensorboard: bool = False
    checkpoint_minutes: Annotated[float, Field(ge=0, le=1e6)] = 5.0
    precision: Literal["float32", "float64", "bfloat16"] = "float32"  # bfloat16: torch.autocast
    average: Annotated[float, Field(gt=0, le=1)] | None = None
    patience: Annotated[int, Field(ge=1, le=10**9)] | None = None


class EstimatorConfig(Config):
    """A gradient estimator, by the stem of its file, that trains in place of a smoothing.

    If it has parameters of its own, such as baselines, they learn `rate_factor` times as fast as the model.
    """

    name: str
    options: dict[str, float | int | bool] = {}
    rate_factor: Annotated[float, Field(gt=0, le=1e4)] = 10.0

    @model_validator(mode="after")
    def _makeable(self) -> "EstimatorConfig":
        """Refuse what the estimator itself would refuse when it is built, by building a small one."""
        import torch

        from dvaepp.estimators import MEMBERS

        member = _member("estimator", self.name, MEMBERS)
        known = {n: p.annotation for n, p in inspect.signature(member).parameters.items() if p.kind is p.KEYWORD_ONLY}
        own_noise = {"generator": torch.Generator("cpu")} if known.pop("generator", None) else {}
        for key, value in self.options.items():
            if key not in known:
                raise ValueError(f"options: {self.name} takes {' and '.join(known) or 'none'}, not {key[:40]!r}")
            self.options[key] = _fitting(f"options.{key}", value, known[key])
        member((1,), 1, **self.options, **own_noise)
        return self


def _fitting(name: str, value: float | int | bool, kind: type) -> float | int | bool:
    """An estimator's option as the type it asks for."""
    if kind is bool and not isinstance(value, bool):
        raise ValueError(f"{name} is true or false, not {value}")
    if kind is int and not (type(value) is int and 1 <= value <= 100_000):
        raise ValueError(f"{name} is a whole number from 1 to 100000, not {value}")
    if kind is float and (isinstance(value, bool) or not (value == 0 or 1e-4 <= value <= 1e4)):
        raise ValueError(f"{name} is a number from 0.0001 to 10000, or 0, not {value}")
    return float(value) if kind is float else value


class EvaluationConfig(Config):
    """How a finished run is evaluated: with binary units ("inf"), or smoothed as in training (App. I)."""

    beta: Literal["inf", "training"] = "inf"
    samples: Annotated[int, Field(ge=1, le=10**7)] = 4000


class Recipe(Config):
    """Everything that decides a run. Sections that do not fit each other, or the memory of the machine, are refused.

    `name` becomes a part of the name of the run's folder.
    """

    name: Annotated[str, AfterValidator(_file_name)]
    data: DataConfig = DataConfig()
    model: AnyModel = FeedForwardConfig()
    smoothing: SmoothingConfig = SmoothingConfig()
    optimizer: OptimizerConfig = OptimizerConfig()
    chains: ChainsConfig = ChainsConfig()
    training: TrainingConfig = TrainingConfig()
    estimator: EstimatorConfig | None = None
    evaluation: EvaluationConfig = EvaluationConfig()

    @model_validator(mode="after")
    def _consistent(self) -> "Recipe":
        self._read_for_model()
        undirected, objective = self.training.objective in UNDIRECTED, self.training.objective
        if undirected != self.model.undirected:
            kind = "an undirected" if self.model.undirected else "a directed"
            raise ValueError(
                f"objective {objective!r} does not fit {kind} prior: an undirected one, such as an RBM, trains "
                f"with {', '.join(UNDIRECTED)}, a directed one with joint or marginal"
            )
        self.model.check_training(self.training, self.estimator is not None)
        if self.estimator is not None:
            self._estimable()
        if (objective == "rolfe") != (self.smoothing.name == "spike_exponential"):
            raise ValueError("objective 'rolfe' and smoothing 'spike_exponential' go together")
        self._smoothable()
        if self.training.importance_samples > 1 and objective not in WEIGHTS:
            raise ValueError(
                f"importance_samples above 1 needs an objective that is an importance weight, {', '.join(WEIGHTS)}, "
                f"not {objective!r}"
            )
        self._matches_data()
        from dvaepp.recipes import budget

        budget.check_early(self)
        return self

    def changed(self, **changes: Any) -> "Recipe":
        """A copy with other fields, checked again; a dictionary changes only the fields of a section that it names."""
        tree = self.model_dump()
        changed = {name: {**tree[name], **new} if isinstance(new, dict) else new for name, new in changes.items()}
        return Recipe.model_validate(tree | changed)

    def without_path(self) -> "Recipe":
        """The same without the path of one's own images, as if they had been given in Python."""
        return self if self.data.path is None else self.changed(data={"path": None, "memory": True})

    def _read_for_model(self) -> None:
        """Make the likelihoods of the model and of the user's own images agree.

        A recipe is frozen, and this is the only place that changes fields, so that the recipe stored beside a run says
        what was decided.
        """
        if self.data.path is None:
            return
        model = self.model.for_images(self.data.likelihood, self.data.resize)
        self.__dict__["model"] = model
        self.__dict__["data"] = self.data.model_copy(update={"likelihood": model.expected_likelihood})

    def _matches_data(self) -> None:
        """Refuse a model that cannot take the images of its data set."""
        shape = self.data.image_shape()
        if shape is None:
            return
        colour = self.model.expected_likelihood == "logistic_mixture"
        if (shape[0] == 3) != colour:
            kinds = {True: "colour images", False: "binary images"}
            raise ValueError(f"{self.data.name} has {kinds[shape[0] == 3]}; this model takes {kinds[colour]}")
        if misfit := self.model.misfit(shape):
            raise ValueError(f"{self.data.name} has images of {shape[1]} x {shape[2]}: {misfit}")

    def _smoothable(self) -> None:
        """Refuse a smoothing that the objective cannot use: all but joint and rolfe need overlapping densities."""
        from dvaepp.smoothing import MEMBERS
        from dvaepp.smoothing.base import Overlapping

        name = self.smoothing.name
        overlapping = issubclass(MEMBERS[name], Overlapping)
        local = self.model.marginal_units
        objective = self.training.objective
        if not overlapping and (objective not in ("joint", "rolfe") or local):
            good = sorted(each for each, member in MEMBERS.items() if issubclass(member, Overlapping))
            what = "Bernoulli local units" if local and objective == "rolfe" else f"objective {objective!r}"
            raise ValueError(f"{what} needs an overlapping smoothing, not {name!r}: {', '.join(good)}")
        if objective == "gaussian_integral" and (name != "gaussian" or self.smoothing.num_groups is not None):
            raise ValueError("objective 'gaussian_integral' needs the smoothing gaussian with one scale for all groups")
        if name == "binary" and self.estimator is None:
            raise ValueError("smoothing 'binary' passes no gradient: choose another, or an estimator")
        given, groups = self.smoothing.num_groups, self.model.smoothed_groups
        if given is not None and given != groups:
            raise ValueError(f"smoothing has values for {given} groups, and the model has {groups} of binary units")

    def _estimable(self) -> None:
        """Refuse what an estimator cannot do before anything is trained."""
        from dvaepp.estimators import MEMBERS

        assert self.estimator is not None
        MEMBERS[self.estimator.name].check("undirected" if self.model.undirected else "directed")
        if self.model.undirected:
            raise ValueError("gradient estimators train directed priors here: the chains of an RBM need a smoothing")
        if self.smoothing.name != "binary" or self.training.objective != "joint":
            raise ValueError("with an estimator the units are binary: smoothing.name=binary, training.objective=joint")
        if self.training.importance_samples > 1 or self.training.kl_warmup > 0:
            raise ValueError("an estimator takes no importance_samples and no kl_warmup; vimco has num_samples")
