"""What a run is: a tree of frozen models that refuse unknown keys. Written as JSON beside each run, and read back."""

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

Fraction = Annotated[float, Field(ge=0, le=1)]
Units = Annotated[int, Field(ge=1, le=100_000)]


class Section(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class Data(Section):
    """A named data set, or the user's own images under `path`."""

    name: str = "mnist_static"
    path: str | None = None


class Model(Section):
    groups: Annotated[tuple[Units, ...], Field(min_length=1, max_length=64)] = (200,)
    hidden: Annotated[tuple[Units, ...], Field(max_length=16)] = ()
    prior: Literal["rbm", "directed"] = "rbm"
    batch_norm: bool = True
    centered_code: bool = False


class Smoothing(Section):
    """The smoothing by the stem of its file; its sharpness goes linearly from `start` to `end` over training."""

    name: str = "exponential"
    start: Annotated[float, Field(gt=0)] = 8.0
    end: Annotated[float, Field(gt=0)] = 8.0


class Decay(Section):
    at: Fraction
    factor: Annotated[float, Field(gt=0, le=1)]


class Optimizer(Section):
    """Adam or AdaMax; `warmup` is the share of steps at a tenth of the rate."""

    name: Literal["adam", "adamax"] = "adam"
    learning_rate: Annotated[float, Field(gt=0, le=1)] = 3e-3
    epsilon: Annotated[float, Field(gt=0)] = 1e-3
    beta2: Annotated[float, Field(ge=0, lt=1)] = 0.999
    weight_decay: Annotated[float, Field(ge=0)] = 0.0
    warmup: Fraction = 0.0
    decays: tuple[Decay, ...] = ()


class Chains(Section):
    """Persistent chains behind the gradient of log Z (App. E)."""

    num_chains: Annotated[int, Field(ge=1, le=1_000_000)] = 100
    num_sweeps: Annotated[int, Field(ge=1, le=100_000)] = 40


class Training(Section):
    steps: Annotated[int, Field(ge=1, le=10**9)] = 1_000_000
    batch_size: Annotated[int, Field(ge=1, le=100_000)] = 100
    objective: Literal["boltzmann", "rolfe", "joint", "marginal"] = "boltzmann"
    importance_samples: Annotated[int, Field(ge=1, le=1000)] = 1
    kl_warmup: Fraction = 0.3
    validate_every: Annotated[float, Field(gt=0, le=1)] = 0.02
    validation_samples: Annotated[int, Field(ge=1, le=100_000)] = 100
    validation_images: Annotated[int, Field(ge=1)] | None = 1000
    seed: Annotated[int, Field(ge=0, lt=2**63)] = 0


class Evaluation(Section):
    samples: Annotated[int, Field(ge=1, le=10**7)] = 4000


class Recipe(Section):
    name: str
    data: Data = Data()
    model: Model = Model()
    smoothing: Smoothing = Smoothing()
    optimizer: Optimizer = Optimizer()
    chains: Chains = Chains()
    training: Training = Training()
    evaluation: Evaluation = Evaluation()

    @model_validator(mode="after")
    def _consistent(self) -> "Recipe":
        undirected = self.training.objective in ("boltzmann", "rolfe")
        if undirected != (self.model.prior == "rbm"):
            raise ValueError(
                f"objective {self.training.objective!r} does not fit prior {self.model.prior!r}: an rbm prior trains "
                "with boltzmann or rolfe, a directed one with joint or marginal"
            )
        if (self.training.objective == "rolfe") != (self.smoothing.name == "spike_exponential"):
            raise ValueError("objective 'rolfe' and smoothing 'spike_exponential' go together")
        if self.training.importance_samples > 1 and self.training.objective != "marginal":
            raise ValueError("importance_samples above 1 needs the marginal objective")
        return self
