"""The prior of a recipe: a member of `dvaepp.priors` by the stem of its file, with that member's own options.

    {"name": "rbm"}
    {"name": "boltzmann_machine", "graph": "king"}

The names of the options and their defaults are the keyword arguments of the member's `for_groups`, so a new file in
`dvaepp/priors/` can be trained without a change here. Recipes that were written before there were options hold a name
instead of such a section; it is read as {"name": ...}.
"""

import inspect
import reprlib
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from pydantic import model_validator

from dvaepp.recipes.family import FamilyConfig

if TYPE_CHECKING:
    from dvaepp.priors import Prior
    from dvaepp.priors.family import Kind, Network

A = {bool: "true or false", int: "a whole number", float: "a number", str: "a name"}


class PriorConfig(FamilyConfig):
    """The prior of a model; the head of this file shows its forms."""

    folder: ClassVar[str] = "priors"
    called: ClassVar[tuple[str, str]] = ("prior", "option")
    name: str = "rbm"

    @model_validator(mode="before")
    @classmethod
    def _named(cls, given: Any) -> Any:
        return {"name": given} if isinstance(given, str) else given

    @classmethod
    def defaults(cls, name: str) -> dict[str, Any]:
        parameters = inspect.signature(cls.members()[name].for_groups).parameters.values()
        return {p.name: p.default for p in parameters if p.kind is p.KEYWORD_ONLY}

    @classmethod
    def parsed(cls, name: str, key: str, value: Any) -> Any:
        kind = type(cls.defaults(name)[key])
        if type(value) is not kind:
            raise ValueError(f"{key} of {name} is {A[kind]}, not {reprlib.repr(value)}")
        return value

    @model_validator(mode="after")
    def _makeable(self) -> "PriorConfig":
        """Refuse what the member would refuse when it is built, by building a small one."""
        from torch import nn

        self.make([2, 2], lambda inputs, outputs: nn.Identity())
        return self

    @property
    def kind(self) -> "Kind":
        """Undirected or directed: which objectives train it."""
        return self.members()[self.name].kind

    @property
    def min_units(self) -> int:
        """The fewest units it can be made for."""
        return self.members()[self.name].min_units

    def num_couplings(self, num_units: int) -> int:
        """Numbers that the couplings of so many units are stored in; a directed prior has none."""
        return self.members()[self.name].num_couplings(num_units) if self.kind == "undirected" else 0

    def make(self, group_sizes: Sequence[int], network: "Network") -> "Prior":
        """The prior for groups of these sizes; `network` makes networks from numbers of inputs and outputs."""
        return self.members()[self.name].for_groups(group_sizes, network, **self.parameters)
