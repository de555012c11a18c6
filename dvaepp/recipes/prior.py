"""The prior of a recipe: a member of `dvaepp.priors` by the stem of its file, with that member's own options.

    {"name": "rbm"}
    {"name": "boltzmann_machine", "graph": "king"}

The names of the options and their defaults are the keyword arguments of the member's `for_groups`, so a new file in
`dvaepp/priors/` can be trained without a change here. A name alone is read too: recipes from before options had one.
"""

import inspect
import reprlib
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from pydantic import ConfigDict, model_validator

from dvaepp.recipes.section import Section

if TYPE_CHECKING:
    from dvaepp.priors import Prior
    from dvaepp.priors.family import Kind, Network

A = {bool: "true or false", int: "a whole number", float: "a number", str: "a name"}


def _members() -> dict[str, Any]:
    from dvaepp.priors import MEMBERS  # it brings torch, which not every command needs

    return dict(MEMBERS)


def known(name: Any) -> bool:
    """Whether there is a prior of this name."""
    return isinstance(name, str) and name in _members()


def defaults(name: str) -> dict[str, Any]:
    """The options of a member and their defaults."""
    parameters = inspect.signature(_members()[name].for_groups).parameters.values()
    return {p.name: p.default for p in parameters if p.kind is p.KEYWORD_ONLY}


def unknown(name: str, key: str) -> str:
    """The message that refuses an option which the member does not have."""
    return f"{name} has no option {reprlib.repr(key)}: it takes {', '.join(defaults(name)) or 'none'}"


class PriorConfig(Section):
    """See the head of this file. Options that are not given take the member's defaults."""

    model_config = ConfigDict(extra="allow")  # the options; the validator refuses what the member does not have

    name: str = "rbm"

    @classmethod
    def of(cls, name: str, **options: Any) -> "PriorConfig":
        return cls.model_validate({"name": name, **options})

    @model_validator(mode="before")
    @classmethod
    def _complete(cls, given: Any) -> Any:
        """Refuse another member's options, and fill in the defaults."""
        given = {"name": given} if isinstance(given, str) else given
        if not isinstance(given, dict):
            return given
        name = given.get("name", "rbm")
        if not known(name):
            raise ValueError(f"no prior called {reprlib.repr(name)}; there are {', '.join(sorted(_members()))}")
        own = defaults(name)
        for key, value in given.items():
            if key != "name" and key not in own:
                raise ValueError(unknown(name, key))
            if key != "name" and type(value) is not type(own[key]):
                raise ValueError(f"{key} of {name} is {A[type(own[key])]}, not {reprlib.repr(value)}")
        return {"name": name, **own, **given}

    @model_validator(mode="after")
    def _makeable(self) -> "PriorConfig":
        """Refuse what the member would refuse when it is built, by building a small one."""
        self.make([2, 2], _no_network)
        return self

    @property
    def options(self) -> dict[str, Any]:
        return dict(self.__pydantic_extra__ or {})

    @property
    def kind(self) -> "Kind":
        """Undirected or directed: which objectives train it."""
        found: Kind = _members()[self.name].kind
        return found

    @property
    def min_units(self) -> int:
        """The fewest units it can be made for."""
        found: int = _members()[self.name].min_units
        return found

    def num_couplings(self, num_units: int) -> int:
        """Numbers that the couplings of so many units are stored in; a directed prior has none."""
        return _members()[self.name].num_couplings(num_units) if self.kind == "undirected" else 0

    def make(self, group_sizes: Sequence[int], network: "Network") -> "Prior":
        """The prior for groups of these sizes; `network` makes networks from numbers of inputs and outputs."""
        made: Prior = _members()[self.name].for_groups(group_sizes, network, **self.options)
        return made


def _no_network(inputs: int, outputs: int) -> Any:
    from torch import nn

    return nn.Identity()
