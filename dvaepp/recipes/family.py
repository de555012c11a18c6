"""A section of a recipe that names a member of a family, such as a smoothing, and holds that member's parameters.

Which parameters there are depends on the name. They are taken from the member itself, so a new file in the folder of a
family can be trained without a change to recipes.
"""

import importlib
import reprlib
from typing import TYPE_CHECKING, Any, ClassVar

from pydantic import ConfigDict, model_validator

from dvaepp.recipes.config import Config

if TYPE_CHECKING:
    from typing import Self


class FamilyConfig(Config):
    """A member of a family by the stem of its file. Parameters that are not given take the member's defaults.

    A subclass states the folder of the family, what one member and one parameter are called in messages, and how a
    value is written there; it also knows the `defaults` of a member, and parses a value.
    """

    model_config = ConfigDict(extra="allow")  # the parameters; `_complete` refuses what the member does not have
    folder: ClassVar[str]
    called: ClassVar[tuple[str, str]]
    forms: ClassVar[str] = ""
    name: str

    @classmethod
    def members(cls) -> dict[str, Any]:
        """The members by name. They are imported here, since they bring torch, which not every command needs."""
        return dict(importlib.import_module(f"dvaepp.{cls.folder}").MEMBERS)

    @classmethod
    def known(cls, name: Any) -> bool:
        """Whether there is a member of this name."""
        return isinstance(name, str) and name in cls.members()

    @classmethod
    def defaults(cls, name: str) -> dict[str, Any]:
        """The parameters of a member and their defaults; None stands for one that a recipe has to give."""
        raise NotImplementedError

    @classmethod
    def parsed(cls, name: str, key: str, value: Any) -> Any:
        """The value of a parameter, or a ValueError that says what is expected."""
        raise NotImplementedError

    @classmethod
    def renamed(cls, own: dict[str, Any], given: dict[str, Any]) -> dict[str, Any]:
        """The parameters that are given, by the names that they have now."""
        return given

    @classmethod
    def unknown(cls, name: str, key: str) -> str:
        """The message that refuses a parameter which the member does not have."""
        names = list(cls.defaults(name))
        example = f"; e.g. {cls.called[0]}.{names[0]}={cls.forms}" if names and cls.forms else ""
        return f"{name} has no {cls.called[1]} {reprlib.repr(key)}: it takes {', '.join(names) or 'none'}{example}"

    @classmethod
    def of(cls, name: str, **parameters: Any) -> "Self":
        return cls.model_validate({"name": name, **parameters})

    @property
    def parameters(self) -> dict[str, Any]:
        return dict(self.__pydantic_extra__ or {})

    @model_validator(mode="before")
    @classmethod
    def _complete(cls, given: Any) -> Any:
        """Refuse another member's parameters, and fill in the defaults."""
        if not isinstance(given, dict):
            return given
        given = {"name": cls.model_fields["name"].default, **given}
        name = given.pop("name")
        if not cls.known(name):
            there = ", ".join(sorted(cls.members()))
            raise ValueError(f"no {cls.called[0]} called {reprlib.repr(name)}; there are {there}")
        own = cls.defaults(name)
        given = cls.renamed(own, given)
        if other := [key for key in given if key not in own]:
            raise ValueError(cls.unknown(name, other[0]))
        return {"name": name, **{key: cls.parsed(name, key, value) for key, value in (own | given).items()}}
