"""No code of the package loads pickles, runs text or unpacks archives onto the disk: a walk over its syntax."""

import ast
from pathlib import Path

import pytest

import dvaepp

MODULES = {"pickle", "cPickle", "_pickle", "dill", "cloudpickle", "joblib", "shelve", "marshal", "jsonpickle", "pandas"}
CALLS = {  # by the full name of what is called
    "torch.load": "torch.load unpickles",
    "torch.jit.load": "a script runs",
    "torch.hub.load": "downloaded code runs",
    "torch.serialization.load": "torch.load unpickles",
    "numpy.lib.npyio.load": "it unpickles",
    "numpy.lib.format.read_array": "it may unpickle, and takes the memory that a header asks for",
    "scipy.io.loadmat": "it builds objects, and takes the memory that a header asks for",
    "yaml.load": "it builds any object",
    "yaml.unsafe_load": "it builds any object",
    "yaml.full_load": "it builds objects",
    "shutil.unpack_archive": "it writes wherever an archive says",
    "eval": "it runs text",
    "exec": "it runs text",
    "compile": "it makes code of text",
    "os.system": "it runs text",
    "os.popen": "it runs text",
}
METHODS = {"extract", "extractall"}
READERS = {"numpy.load"}  # only with allow_pickle=False


class _Walk(ast.NodeVisitor):
    """Collects what is forbidden; local names are traced back to the modules they were imported from."""

    def __init__(self) -> None:
        self.names: dict[str, str] = {}
        self.found: list[str] = []

    def visit_Import(self, node: ast.Import) -> None:
        for alias in node.names:
            self._module(node, alias.name)
            self.names[alias.asname or alias.name.partition(".")[0]] = (
                alias.name if alias.asname else alias.name.partition(".")[0]
            )

    def visit_ImportFrom(self, node: ast.ImportFrom) -> None:
        self._module(node, node.module or "")
        for alias in node.names:
            self._module(node, alias.name)
            self.names[alias.asname or alias.name] = f"{node.module}.{alias.name}"
            self._call(node, f"{node.module}.{alias.name}", [])

    def visit_Call(self, node: ast.Call) -> None:
        name = self._name(node.func)
        self._call(node, name, node.keywords)
        if name in ("__import__", "importlib.import_module", "import_module"):
            for argument in node.args[:1]:
                if isinstance(argument, ast.Constant) and isinstance(argument.value, str):
                    self._module(node, argument.value)
        if isinstance(node.func, ast.Attribute) and node.func.attr in METHODS:
            self._note(node, f".{node.func.attr}() writes wherever an archive says")
        if any(k.arg == "shell" and not _is(k.value, False) for k in node.keywords):
            self._note(node, "a shell runs text")
        if any(k.arg == "allow_pickle" and not _is(k.value, False) for k in node.keywords):
            self._note(node, "allow_pickle must be False")
        if any(k.arg == "weights_only" for k in node.keywords):
            self._note(node, "torch.load unpickles")
        self.generic_visit(node)

    def visit_Attribute(self, node: ast.Attribute) -> None:
        if self._name(node) in CALLS:  # handed on rather than called
            self._note(node, CALLS[self._name(node)])
        self.generic_visit(node)

    def _name(self, node: ast.expr) -> str:
        if isinstance(node, ast.Attribute):
            return f"{self._name(node.value)}.{node.attr}"
        return self.names.get(node.id, node.id) if isinstance(node, ast.Name) else ""

    def _call(self, node: ast.AST, name: str, keywords: list[ast.keyword]) -> None:
        if name in CALLS:
            self._note(node, CALLS[name])
        if name in READERS and not any(k.arg == "allow_pickle" and _is(k.value, False) for k in keywords):
            self._note(node, f"{name} without allow_pickle=False")

    def _module(self, node: ast.AST, name: str) -> None:
        if name.partition(".")[0] in MODULES:
            self._note(node, f"{name} is imported")

    def _note(self, node: ast.AST, what: str) -> None:
        self.found.append(f"{getattr(node, 'lineno', 0)}: {what}")


def _is(node: ast.expr, value: object) -> bool:
    return isinstance(node, ast.Constant) and node.value is value


def forbidden(source: str) -> list[str]:
    walk = _Walk()
    walk.visit(ast.parse(source))
    return walk.found


SOURCES = sorted(Path(dvaepp.__file__).parent.rglob("*.py"))


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(Path(dvaepp.__file__).parents[1])))
def test_the_package_runs_nothing_that_it_reads(path: Path) -> None:
    assert forbidden(path.read_text()) == []


@pytest.mark.parametrize(
    "snippet",
    [
        "import pickle",
        "import pickle as p",
        "import os, marshal",
        "from pickle import loads",
        "from joblib import load",
        "import joblib.externals",
        "import cPickle",
        "import dill",
        "import shelve",
        "from six.moves import cPickle",
        "def f():\n    import pickle",
        "__import__('pickle')",
        "import importlib\nimportlib.import_module('pickle')",
        "from importlib import import_module\nimport_module('dill')",
        "import torch\ntorch.load(path)",
        "import torch\ntorch.load(path, weights_only=True)",
        "import torch as t\nt.load(path)",
        "from torch import load\nload(path)",
        "import torch\nread = torch.load",
        "import torch\ntorch.jit.load(path)",
        "from torch import serialization\nserialization.load(path)",
        "import numpy as np\nnp.load(path)",
        "import numpy as np\nnp.load(path, allow_pickle=True)",
        "import numpy as np\nnp.load(path, allow_pickle=flag)",
        "import numpy\nnumpy.load(path, 'r')",
        "from numpy import load\nload(path, allow_pickle=True)",
        "from numpy.lib import format as f\nf.read_array(file)",
        "from scipy.io import loadmat",
        "eval(text)",
        "exec(text)",
        "compile(text, 'f', 'exec')",
        "import yaml\nyaml.load(text)",
        "import yaml\nyaml.load(text, Loader=yaml.SafeLoader)",
        "from yaml import unsafe_load",
        "import tarfile\ntarfile.open(path).extractall()",
        "import tarfile\nwith tarfile.open(path) as t:\n    t.extract('x')",
        "import zipfile\nzipfile.ZipFile(path).extractall(path)",
        "import shutil\nshutil.unpack_archive(path)",
        "import os\nos.system('ls')",
        "import subprocess\nsubprocess.run('ls', shell=True)",
        "import pandas\npandas.read_pickle(path)",
    ],
)
def test_each_forbidden_form_is_noticed(snippet: str) -> None:
    assert forbidden(snippet)


@pytest.mark.parametrize(
    "snippet",
    [
        "model.eval()",
        "import re\nre.compile('x')",
        "import torch\nmodel = torch.compile(model)",
        "import numpy as np\nnp.load(path, allow_pickle=False)",
        "import json\njson.load(file)",
        "from dvaepp.data import load\nload('demo')",
        "import yaml\nyaml.safe_load(text)",
        "from numpy.lib import format as f\nf.read_array_header_1_0(file)",
        "archive.extractfile(info)",
    ],
)
def test_harmless_forms_pass(snippet: str) -> None:
    assert forbidden(snippet) == []


def test_every_file_is_walked() -> None:
    assert len(SOURCES) > 100


ABOVE_MODELS = ["training", "evaluation", "reporting", "runs.py", "api.py", "viewer", "cli"]
KINDS = {"DVAE", "FeedForward", "BinaryVAE", "FeedForwardConfig", "ConvolutionalConfig"}


@pytest.mark.parametrize("place", ABOVE_MODELS)
def test_nothing_above_the_models_asks_for_a_kind(place: str) -> None:
    """They call the protocol of `models.base` and the methods of a recipe's section; a class would shut others out."""
    root = Path(dvaepp.__file__).parent / place
    for path in [root] if root.is_file() else sorted(root.rglob("*.py")):
        tree = ast.parse(path.read_text())
        names = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
        names |= {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
        names |= {alias.name for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) for alias in node.names}
        assert not names & KINDS, path


def test_no_two_classes_of_the_package_share_a_name() -> None:
    """A name that means one thing can be searched for, and a reader never has to ask which of two is meant."""
    places: dict[str, list[str]] = {}
    for path in SOURCES:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ClassDef):
                places.setdefault(node.name, []).append(f"{path.name}:{node.lineno}")
    assert {name: found for name, found in places.items() if len(found) > 1} == {}
