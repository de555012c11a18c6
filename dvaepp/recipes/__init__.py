"""Recipes: what can be trained, found by name and changed field by field.

A file of this folder holds functions that return a recipe. `file.function` is the name of such a recipe, and the
arguments of the function are the `key=value` of the command line.
"""

import difflib
import importlib
import inspect
import json
import pkgutil
from collections.abc import Callable, Sequence
from typing import Any, get_args

from pydantic import ValidationError

from dvaepp.errors import UsageError
from dvaepp.recipes.family import FamilyConfig
from dvaepp.recipes.prior import PriorConfig
from dvaepp.recipes.schema import Recipe
from dvaepp.recipes.smoothing import SmoothingConfig

KINDS = ("feedforward", "convolutional", "own")
FAMILIES: dict[str, type[FamilyConfig]] = {"smoothing": SmoothingConfig, "model.prior": PriorConfig}
"""The sections whose fields depend on a name, such as that of a smoothing."""

__all__ = ["Recipe", "build", "differences", "functions", "names", "override"]


def functions() -> dict[str, Callable[..., Recipe]]:
    """Every function that returns a recipe, by name; `demo.demo` is just `demo`."""
    found: dict[str, Callable[..., Recipe]] = {}
    for info in pkgutil.iter_modules(__path__):
        module = importlib.import_module(f"{__name__}.{info.name}")
        for name, value in inspect.getmembers(module, inspect.isfunction):
            returns = value.__annotations__.get("return")
            if value.__module__ == module.__name__ and returns is Recipe and not name.startswith("_"):
                found[name if name == info.name else f"{info.name}.{name}"] = value
    return found


def names() -> list[str]:
    return sorted(functions())


def build(name: str, arguments: Sequence[str] = (), overrides: Sequence[str] = ()) -> Recipe:
    """Resolve `name` with `key=value` arguments of its function, then `path=value` overrides of any field."""
    known = functions()
    if name not in known:
        raise UsageError(f"no recipe called {_short(name)}{_nearest(name, list(known))}; `dvaepp recipes` lists them")
    function = known[name]
    parameters = inspect.signature(function).parameters
    given: dict[str, Any] = {}
    for key, text in map(_pair, arguments):
        if key not in parameters:
            fields = [
                path for path in _leaves(function().model_dump(mode="json")) if key in (path, path.split(".")[-1])
            ]
            remedy = f"; a field of this name is set by --set {fields[0]}=VALUE" if fields else ""
            raise UsageError(f"{name} takes no argument {_short(key)}{remedy or _nearest(key, list(parameters))}")
        given[key] = _convert(key, text, parameters[key].annotation)
    recipe = _checked(lambda: function(**given))
    return override(recipe, [*_freed(recipe, overrides), *overrides])


def _freed(recipe: Recipe, overrides: Sequence[str]) -> list[str]:
    """Leave the interval of validations open if the number of steps changes.

    The interval that a recipe function states is meant for its full schedule; a shorter run would validate too often.
    """
    steps = [text for path, text in map(_pair, overrides) if path == "training.steps"]
    return ["training.validate_every=null"] if any(text != str(recipe.training.steps) for text in steps) else []


def override(recipe: Recipe, overrides: Sequence[str]) -> Recipe:
    """A copy with `section.field=value` changes (JSON values; bare words are strings), validated again."""
    try:
        return _overridden(recipe, overrides)
    except RecursionError:  # from parsing a value, validating it, or writing it into a message
        raise UsageError("a value is nested too deeply: no field takes more than a list of lists") from None


def _overridden(recipe: Recipe, overrides: Sequence[str]) -> Recipe:
    tree = recipe.model_dump(mode="json")
    # The name of a smoothing or prior decides which parameters it has, so names are set before parameters.
    for path, text in sorted(map(_pair, overrides), key=_is_parameter):
        *sections, last = path.split(".")
        family = _family(path)
        if family and isinstance(section := _node(tree, family.split(".")), dict):
            if path == f"{family}.name":
                *above, place = family.split(".")
                _node(tree, above)[place] = _member(FAMILIES[family], section, _value(path, text))
                continue
            _open(FAMILIES[family], section, path.removeprefix(f"{family}."))
        node = _node(tree, sections)
        if not isinstance(node, dict) or last not in node:
            raise UsageError(f"recipe has no field {_short(path)}{_nearest(path, list(_leaves(tree)))}")
        node[last] = _value(path, text)
    return _checked(lambda: Recipe.model_validate(tree))


def _is_parameter(pair: tuple[str, str]) -> bool:
    return bool(_family(pair[0])) and not pair[0].endswith(".name")


def _family(path: str) -> str:
    """The section in `FAMILIES` that a path leads into; empty if there is none."""
    return next((section for section in FAMILIES if path.startswith(f"{section}.")), "")


def _node(tree: Any, keys: Sequence[str]) -> Any:
    """What a tree holds under these keys; None where there is nothing."""
    for key in keys:
        tree = tree.get(key) if isinstance(tree, dict) else None
    return tree


def _member(family: type[FamilyConfig], section: dict[str, Any], name: Any) -> dict[str, Any]:
    """The section with another name and the defaults of what it names; the old parameters would mean nothing there."""
    if section.get("name") == name:
        return section
    return {"name": name, **(family.defaults(name) if family.known(name) else {})}


def _open(family: type[FamilyConfig], section: dict[str, Any], path: str) -> None:
    """Make room in a section for the parameter at `path`, or refuse one that the named member does not have.

    A parameter that is a single number becomes one with a start and an end if one of these is about to be set.
    """
    if not family.known(section.get("name")):
        return  # an unknown name is refused when the whole recipe is checked
    parameter, *inside = path.split(".")
    if parameter not in family.defaults(section["name"]):
        raise UsageError(family.unknown(section["name"], parameter))
    value = section.setdefault(parameter, None)
    if inside in (["start"], ["end"]) and isinstance(value, float | int):
        section[parameter] = {"start": value, "end": value}


def _value(path: str, text: str) -> Any:
    try:
        return json.loads(text)
    except json.JSONDecodeError:
        return text
    except ValueError:  # Python reads no number of more than 4300 digits
        raise UsageError(f"{path}: {_short(text)} has too many digits") from None


def differences(old: dict[str, Any], new: Recipe) -> dict[str, str]:
    """Fields in which a recipe, as stored, differs from another: "path: old -> new" by path."""
    try:  # fields that did not exist when the recipe was stored get their defaults
        old = Recipe.model_validate(old).model_dump(mode="json")
    except ValidationError:
        pass
    a, b = _leaves(old), _leaves(new.model_dump(mode="json"))
    missing = "nothing"
    return {
        path: f"{path}: {a.get(path, missing)} -> {b.get(path, missing)}"
        for path in sorted(a.keys() | b.keys())
        if a.get(path, missing) != b.get(path, missing)
    }


def _leaves(tree: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    leaves: dict[str, Any] = {}
    for key, value in tree.items():
        leaves |= _leaves(value, f"{prefix}{key}.") if isinstance(value, dict) else {f"{prefix}{key}": value}
    return leaves


def _checked(make: Callable[[], Recipe]) -> Recipe:
    try:
        return make()
    except ValidationError as error:
        first = error.errors()[0]
        # pydantic names the kind of the model in the path, but a path of --set does not contain it
        where = ".".join(str(part)[:40] for part in first["loc"] if part not in KINDS) or "recipe"
        raise UsageError(f"{where}: {first['msg'].removeprefix('Value error, ')[:500]}") from None


def _pair(text: str) -> tuple[str, str]:
    key, sign, value = text.partition("=")
    if not sign or not key:
        raise UsageError(f"expected key=value, got {_short(text)}")
    return key, value


def _convert(key: str, text: str, annotation: Any) -> Any:
    """Text to the type of a recipe argument."""
    kinds = [k for k in (get_args(annotation) or (annotation,)) if k is not type(None)]
    try:
        if bool in kinds:
            return {"true": True, "false": False}[text.lower()]
        if int in kinds:
            return int(text)
        return float(text) if float in kinds else text
    except (KeyError, ValueError):
        expected = "true or false" if bool in kinds else "a number"
        raise UsageError(f"{key} must be {expected}, got {_short(text)}") from None


def _nearest(word: str, choices: list[str]) -> str:
    close = difflib.get_close_matches(word[:100], choices, n=3, cutoff=0.5)
    return f"; did you mean {' or '.join(close)}?" if close else ""


def _short(text: str) -> str:
    """A quoted text for a message, cut short if it is long."""
    return repr(text) if len(text) <= 60 else f"{text[:60]!r}..."
