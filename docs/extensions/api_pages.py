"""The directive `.. api:: MODULE`: a table of the public names of a module, then each of them in full.

Public is what `__all__` names, or, where a module has none, the classes and functions that it defines. A name that is
added to a module is on its page without a list to edit.
"""

import importlib
import inspect
from types import ModuleType

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.ext import autosummary
from sphinx.util.docutils import SphinxDirective

import dvaepp


def setup(app: Sphinx) -> dict[str, bool]:
    app.add_directive("api", Api)
    autosummary.WELL_KNOWN_ABBREVIATIONS += ("Eq.", "Sec.", "App.", "Fig.", "Figs.")  # they end no sentence
    return {"parallel_read_safe": True, "parallel_write_safe": True}


class Api(SphinxDirective):
    required_arguments = 1

    def run(self) -> list[nodes.Node]:
        text = page(importlib.import_module(self.arguments[0]))
        return self.parse_text_to_nodes(text, allow_section_headings=True)


def page(module: ModuleType) -> str:
    """The text of the page in reStructuredText."""
    names = public(module)
    table = [f".. automodule:: {module.__name__}", "   :no-members:", "", ".. autosummary::", "   :nosignatures:", ""]
    table += [f"   {name}" for name in names]
    entries = [_entry(module, name) for name in names]
    return "\n".join([*table, "", *entries])


def public(module: ModuleType) -> list[str]:
    """The public names that are no modules and not described elsewhere, constants last."""
    named = getattr(module, "__all__", None)
    if named is None:
        return [name for name, value in vars(module).items() if _own(module, name, value)]
    shown = [name for name in named if not name.startswith("_") and not inspect.ismodule(getattr(module, name))]
    shown = [name for name in shown if not _elsewhere(module, name)]
    return sorted(shown, key=lambda name: name.isupper() and name not in _classes(module))


def _elsewhere(module: ModuleType, name: str) -> bool:
    """Is it a name of the package itself, such as `dvaepp.BinaryVAE`? It is described there."""
    named = module is not dvaepp and name in dvaepp.__all__
    return named and getattr(dvaepp, name) is getattr(module, name)


def _classes(module: ModuleType) -> list[str]:
    return [name for name in module.__all__ if inspect.isclass(getattr(module, name))]


def _own(module: ModuleType, name: str, value: object) -> bool:
    kind = inspect.isclass(value) or inspect.isfunction(value)
    return kind and not name.startswith("_") and getattr(value, "__module__", None) == module.__name__


def _entry(module: ModuleType, name: str) -> str:
    value = getattr(module, name)
    if inspect.isclass(value):
        kind = "autoexception" if issubclass(value, BaseException) else "autoclass"
    else:
        kind = "autofunction" if inspect.isroutine(value) else "autodata"
    options = "   :no-value:\n" if kind == "autodata" else ""
    return f".. {kind}:: {module.__name__}.{name}\n{options}\n"
