"""The smoothing of a recipe: a member of `dvaepp.smoothing` by the stem of its file, with that member's own parameters.

    {"name": "logistic", "scale": 0.1}
    {"name": "exponential", "beta": {"start": 6, "end": 16}}       annealed linearly over training (Sec. 7.1)
    {"name": "exponential", "beta": [8, {"start": 6, "end": 16}]}  one value for each group of binary units

The names of the parameters and their defaults are the fields of the member's dataclass, so a new file in
`dvaepp/smoothing/` can be trained without a change here. Groups count the binary global groups first, then the local
groups where those are Bernoulli.
"""

import dataclasses
import reprlib
from typing import Any, ClassVar, Literal

from pydantic import model_validator

from dvaepp.recipes.config import Config
from dvaepp.recipes.family import FamilyConfig

SMALLEST, LARGEST = 1e-6, 1e6  # parameters are squared and exponentiated, and float32 ends at 1e-38 and 1e38
MOST_GROUPS = 192  # the most that a model may have: 64 global and 128 local ones
FORMS = 'NUMBER, {"start": NUMBER, "end": NUMBER}, or a list with one of these per group'
OLD_DEFAULT = 8.0  # the default of `start` and `end`, which old recipes had in place of named parameters


class AnnealedConfig(Config):
    """A number that goes linearly from `start` to `end` over training."""

    start: float
    end: float


Value = float | AnnealedConfig
Sharpness = float | list[float] | Literal["inf"]


class SmoothingConfig(FamilyConfig):
    """The smoothing of the binary units; the head of this file shows its forms."""

    folder: ClassVar[str] = "smoothing"
    called: ClassVar[tuple[str, str]] = ("smoothing", "parameter")
    forms: ClassVar[str] = FORMS
    name: str = "exponential"

    @classmethod
    def defaults(cls, name: str) -> dict[str, Any]:
        own = [field for field in dataclasses.fields(cls.members()[name]) if not field.kw_only]
        return {field.name: None if field.default is dataclasses.MISSING else field.default for field in own}

    @classmethod
    def renamed(cls, own: dict[str, Any], given: dict[str, Any]) -> dict[str, Any]:
        """Read old recipes, in which `start` and `end` stand for those of the first parameter."""
        old = {key: given[key] for key in ("start", "end") if key in given and key not in own}
        first = next(iter(own), None)
        if not old or first in given:  # an old and a new form at once: `start` and `end` will be refused as unknown
            return given
        rest = {key: value for key, value in given.items() if key not in old}
        if first is None:  # binary units have no parameter, and in old recipes these numbers meant nothing
            return rest
        start, end = old.get("start", OLD_DEFAULT), old.get("end", OLD_DEFAULT)
        return {first: start if start == end else {"start": start, "end": end}, **rest}

    @classmethod
    def parsed(cls, name: str, key: str, value: Any) -> Value | list[Value]:
        if not isinstance(value, list | tuple):
            return _single(name, key, value)
        if not 1 <= len(value) <= MOST_GROUPS:
            raise ValueError(f"{key} of {name}: a list has one value per group, from 1 to {MOST_GROUPS}")
        return [_single(name, key, each) for each in value]

    @model_validator(mode="after")
    def _makeable(self) -> "SmoothingConfig":
        """Refuse what the smoothing itself would refuse while training.

        It is enough to make it at the start and at the end, because the values that it allows are intervals.
        """
        member = self.members()[self.name]
        counts = {len(value) for value in self.parameters.values() if isinstance(value, list)}
        if len(counts) > 1:
            raise ValueError(f"lists of {self.name} must have one value per group each, not {sorted(counts)}")
        for t in (0.0, 1.0):
            for parameters in self.at(t):
                try:
                    member(**parameters)
                except ValueError as error:
                    raise ValueError(f"{self.name}: {error}") from None
        return self

    @property
    def num_groups(self) -> int | None:
        """How many groups have a value of their own; None where one value serves all."""
        return next((len(value) for value in self.parameters.values() if isinstance(value, list)), None)

    def at(self, t: float) -> list[dict[str, float]]:
        """The member's parameters at progress t in [0, 1]: one entry for all groups, or one for each."""
        return [
            {
                name: _number(value[group] if isinstance(value, list) else value, t)
                for name, value in self.parameters.items()
            }
            for group in range(self.num_groups or 1)
        ]

    def sharpness(self, t: float) -> Sharpness:
        """The first parameter at progress t, e.g. β: a number, or a list with one per group; "inf" for binary units."""
        if not self.parameters:
            return "inf"
        values = [next(iter(parameters.values())) for parameters in self.at(t)]
        return values[0] if self.num_groups is None else values


def _single(name: str, key: str, value: Any) -> Value:
    if isinstance(value, AnnealedConfig):
        value = {"start": value.start, "end": value.end}
    if isinstance(value, dict) and value.keys() == {"start", "end"}:
        return AnnealedConfig(start=_finite(name, key, value["start"]), end=_finite(name, key, value["end"]))
    return _finite(name, key, value)


def _finite(name: str, key: str, value: Any) -> float:
    if value is None:
        raise ValueError(f"{key} of {name} has no default: give {key}={FORMS}")
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if not number or not (value == 0 or SMALLEST <= abs(value) <= LARGEST):
        shown = reprlib.repr(value)  # cut short, however long or deep the value is
        raise ValueError(f"{key} of {name} is {shown}; give {FORMS}, where a NUMBER is 0 or of size 1e-6 to 1e6")
    return float(value)


def _number(value: Value, t: float) -> float:
    if isinstance(value, AnnealedConfig):
        return value.end if t == 1 else value.start + (value.end - value.start) * t
    return value
