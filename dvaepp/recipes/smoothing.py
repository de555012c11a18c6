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
from typing import Any, Literal

from pydantic import ConfigDict, model_validator

from dvaepp.recipes.section import Section

SMALLEST, LARGEST = 1e-6, 1e6  # float32 ends at 1e-38 and 1e38, and a parameter is squared and exponentiated
MOST_GROUPS = 192  # as many as a model may have: 64 global and 128 local ones
FORMS = 'NUMBER, {"start": NUMBER, "end": NUMBER}, or a list with one of these per group'
OLD_DEFAULT = 8.0  # of the start and the end that every member had before parameters had names


class Annealed(Section):
    """A number that goes linearly from `start` to `end` over training."""

    start: float
    end: float


Value = float | Annealed
Sharpness = float | list[float] | Literal["inf"]


def _members() -> dict[str, Any]:
    from dvaepp.smoothing import MEMBERS  # it brings torch, which not every command needs

    return dict(MEMBERS)


def known(name: Any) -> bool:
    """Whether there is a smoothing of this name."""
    return isinstance(name, str) and name in _members()


def defaults(name: str) -> dict[str, Any]:
    """The parameters of a member and their defaults; a parameter without one is None, and a recipe has to give it."""
    own = [field for field in dataclasses.fields(_members()[name]) if not field.kw_only]
    return {field.name: None if field.default is dataclasses.MISSING else field.default for field in own}


def unknown(name: str, key: str) -> str:
    """The message that refuses a parameter which the member does not have."""
    names = list(defaults(name))
    remedy = f"it takes {', '.join(names)}; e.g. smoothing.{names[0]}={FORMS}" if names else "it takes none"
    return f"{name} has no parameter {reprlib.repr(key)}: {remedy}"


class SmoothingConfig(Section):
    """See the head of this file. Parameters that are not given take the member's defaults."""

    model_config = ConfigDict(extra="allow")  # the parameters; the validator refuses what the member does not have

    name: str = "exponential"

    @classmethod
    def of(cls, name: str, **parameters: Any) -> "SmoothingConfig":
        return cls.model_validate({"name": name, **parameters})

    @model_validator(mode="before")
    @classmethod
    def _complete(cls, given: Any) -> Any:
        """Refuse another member's parameters, and fill in the defaults."""
        if not isinstance(given, dict):
            return given
        given = dict(given)
        name = given.pop("name", "exponential")
        if not known(name):
            raise ValueError(f"no smoothing called {reprlib.repr(name)}; there are {', '.join(sorted(_members()))}")
        own = defaults(name)
        given = _renamed(own, given)
        for key in given:
            if key not in own:
                raise ValueError(unknown(name, key))
        values = {key: given.get(key, default) for key, default in own.items()}
        return {"name": name, **{key: _parsed(name, key, value) for key, value in values.items()}}

    @model_validator(mode="after")
    def _makeable(self) -> "SmoothingConfig":
        """Refuse what the member would refuse in the first step; its ranges are intervals, so the ends decide."""
        member = _members()[self.name]
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
    def parameters(self) -> dict[str, Value | list[Value]]:
        return dict(self.__pydantic_extra__ or {})

    @property
    def num_groups(self) -> int | None:
        """How many groups have a value of their own; None where one value serves all."""
        return next((len(value) for value in self.parameters.values() if isinstance(value, list)), None)

    def at(self, t: float) -> list[dict[str, float]]:
        """The member's parameters at progress t in [0, 1]: one entry for all groups, or one for each."""
        return [
            {name: _number(value[group] if isinstance(value, list) else value, t) for name, value in self._items()}
            for group in range(self.num_groups or 1)
        ]

    def sharpness(self, t: float) -> Sharpness:
        """The first parameter at progress t, e.g. β: a number, or a list with one per group; "inf" for binary units."""
        if not self.parameters:
            return "inf"
        values = [next(iter(parameters.values())) for parameters in self.at(t)]
        return values[0] if self.num_groups is None else values

    @property
    def start(self) -> Sharpness:
        return self.sharpness(0.0)

    @property
    def end(self) -> Sharpness:
        return self.sharpness(1.0)

    def _items(self) -> list[tuple[str, Value | list[Value]]]:
        return list(self.parameters.items())


def _renamed(own: dict[str, Any], given: dict[str, Any]) -> dict[str, Any]:
    """Read what was written before parameters had names: `start` and `end` were those of the first one."""
    old = {key: given[key] for key in ("start", "end") if key in given and key not in own}
    if not old:
        return given
    first = next(iter(own), None)
    if first in given:
        return given  # neither old nor new: refused as an unknown key
    rest = {key: value for key, value in given.items() if key not in old}
    if first is None:  # binary units had numbers that meant nothing
        return rest
    start, end = old.get("start", OLD_DEFAULT), old.get("end", OLD_DEFAULT)
    return {first: start if start == end else {"start": start, "end": end}, **rest}


def _parsed(name: str, key: str, value: Any) -> Value | list[Value]:
    if isinstance(value, list | tuple):
        if not 1 <= len(value) <= MOST_GROUPS:
            raise ValueError(f"{key} of {name}: a list has one value per group, from 1 to {MOST_GROUPS}")
        return [_single(name, key, each) for each in value]
    return _single(name, key, value)


def _single(name: str, key: str, value: Any) -> Value:
    if isinstance(value, Annealed):
        value = {"start": value.start, "end": value.end}
    if isinstance(value, dict) and value.keys() == {"start", "end"}:
        return Annealed(start=_finite(name, key, value["start"]), end=_finite(name, key, value["end"]))
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
    if isinstance(value, Annealed):
        return value.end if t == 1 else value.start + (value.end - value.start) * t
    return value
