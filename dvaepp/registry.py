"""Members of a family, found by looking: one file holds one member, and the file's stem is its name."""

import importlib
import inspect
import pkgutil
from types import ModuleType
from typing import TypeVar

Base = TypeVar("Base")


def members(package: ModuleType, base: type[Base]) -> dict[str, type[Base]]:
    """The concrete subclass of `base` that each module of `package` defines, by file stem."""
    found: dict[str, type[Base]] = {}
    for info in pkgutil.iter_modules(package.__path__):
        module = importlib.import_module(f"{package.__name__}.{info.name}")
        for _, value in inspect.getmembers(module, inspect.isclass):
            defined_here = value.__module__ == module.__name__
            if defined_here and issubclass(value, base) and not inspect.isabstract(value):
                if info.name in found:
                    raise TypeError(f"{module.__name__} defines two members: one file, one member")
                found[info.name] = value
    return found
