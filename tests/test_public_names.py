"""What a user meets: `dir`, `help`, types and reprs of the names that the library shows."""

import doctest
import importlib
import inspect
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

import dvaepp

ROOT = Path(dvaepp.__file__).parents[1]
MODULES = ["smoothing", "distributions", "priors", "samplers", "log_partition", "objectives", "estimators", "nn"]
MODULES += ["data", "codes", "evaluation", "models", "networks", "training"]
BLOCKS = ["convolution.Conv", "excitation.Excitation", "norm.BatchNorm", "residual.Residual", "residual.residual"]
BLOCKS += ["selu.Selu"]
# They have no help of their own, or an example that needs a trained model.
NO_EXAMPLE = ("MEMBERS", "Source", "log_likelihood", "replay")


def _named(family: str) -> Iterator[tuple[str, object]]:
    module = importlib.import_module(f"dvaepp.{family}")
    yield from ((name, getattr(module, name)) for name in module.__all__ if name not in NO_EXAMPLE)


NAMES = [(f"{family}.{name}", value) for family in MODULES for name, value in _named(family)]
for block in BLOCKS:
    file, _, member = block.partition(".")
    NAMES.append((f"networks.{block}", getattr(importlib.import_module(f"dvaepp.networks.{file}"), member)))


def _context() -> dict[str, object]:
    """torch and all names of the library."""
    return {"torch": torch, "dvaepp": dvaepp} | {name.rpartition(".")[2]: value for name, value in NAMES}


def test_importing_the_library_imports_no_torch() -> None:
    code = "import sys, dvaepp; dir(dvaepp); print([m for m in ('torch', 'numpy', 'pydantic') if m in sys.modules])"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[]"


def test_dir_shows_what_there_is_and_everything_shown_is_there() -> None:
    assert {"train", "load", "evaluate", "report", "BinaryVAE", "smoothing", "data", "priors"} <= set(dir(dvaepp))
    for name in dir(dvaepp):
        assert getattr(dvaepp, name) is not None
    with pytest.raises(AttributeError, match="has no attribute 'trian'"):
        dvaepp.trian  # type: ignore[attr-defined]  # noqa: B018


@pytest.mark.parametrize(("name", "value"), NAMES, ids=[name for name, _ in NAMES])
def test_help_says_when_to_choose_it_with_an_example(name: str, value: object) -> None:
    text = value.__doc__ or ""  # its own: an inherited one is about something else
    assert re.search(r"\bChoose it\b", text), f"{name} does not say when to choose it"
    assert len(re.findall(r"^\s*(?:>>>|\.\.\. |\S)", text[text.index(">>>") :], re.MULTILINE)) >= 2, (
        "two lines at least"
    )


@pytest.mark.parametrize(("name", "value"), NAMES, ids=[name for name, _ in NAMES])
def test_examples_do_what_they_show(name: str, value: object, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    names = _context()
    test = doctest.DocTestParser().get_doctest(inspect.getdoc(value) or "", names, name, None, None)
    assert test.examples
    report: list[str] = []
    with torch.random.fork_rng():
        torch.manual_seed(0)
        result = doctest.DocTestRunner(optionflags=doctest.NORMALIZE_WHITESPACE).run(test, out=report.append)
    assert result.failed == 0, "".join(report)


@pytest.mark.slow
def test_the_calls_at_the_top_work_one_after_the_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Later examples load, evaluate and report what the earlier ones have trained."""
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {"torch": torch, "dvaepp": dvaepp, "BinaryVAE": dvaepp.BinaryVAE}
    for value in (dvaepp.BinaryVAE, dvaepp.train, dvaepp.load, dvaepp.evaluate, dvaepp.report):
        assert re.search(r"\bChoose it\b", value.__doc__ or ""), value
        test = doctest.DocTestParser().get_doctest(inspect.getdoc(value) or "", names, str(value), None, None)
        report: list[str] = []
        result = doctest.DocTestRunner().run(test, out=report.append, clear_globs=False)
        assert test.examples and result.failed == 0, "".join(report)
        names = test.globs


def test_an_example_that_shows_something_else_is_noticed() -> None:
    test = doctest.DocTestParser().get_doctest(">>> 1 + 1\n3", {}, "wrong", None, None)
    assert doctest.DocTestRunner().run(test, out=lambda text: None).failed == 1


@pytest.mark.parametrize("family", MODULES)
def test_reprs_say_what_a_thing_is_in_a_line_or_two(family: str) -> None:
    """Objects that the examples make: no memory addresses, and no hundred lines."""
    for name, value in _named(family):
        test = doctest.DocTestParser().get_doctest(inspect.getdoc(value) or "", {}, name, None, None)
        for example in test.examples:
            made = re.match(r"(?:\w+ = )?([A-Z]\w+\([^()]*\))", example.source)
            if made and made[1].startswith(name):
                text = repr(eval(made[1], _context()))
                assert " at 0x" not in text and len(text) < 400, text


RIGHT = """
import dvaepp
import torch
from typing import assert_type
from dvaepp.distributions import SmoothedBernoulli
from dvaepp.log_partition import LogPartition, log_partition
from dvaepp.models.trained import Trained
from dvaepp.priors import RBM
from dvaepp.smoothing import Exponential
{imports}
q = SmoothedBernoulli(logits=torch.zeros(3), smoothing=Exponential(8.0))
assert_type(q, SmoothedBernoulli)
assert_type(dvaepp.smoothing.Exponential(beta=8.0), Exponential)
assert_type(dvaepp.priors.RBM(2, 2), RBM)
assert_type(log_partition(RBM(2, 2)), LogPartition)
assert_type(dvaepp.data.as_dataset(torch.zeros(20, 4)), dvaepp.data.Dataset)
assert_type(dvaepp.load("run"), Trained)
"""
WRONG = {
    "dvaepp.trian": 'Module has no attribute "trian"',
    "dvaepp.smoothing.Exponentiel(8.0)": 'Module has no attribute "Exponentiel"',
    "dvaepp.estimators.DisArm": 'Module has no attribute "DisArm"',
    "dvaepp.priors.RBM(3)": 'Missing positional argument "num_right"',
    'dvaepp.smoothing.Exponential(beta="8")': 'Argument "beta" to "Exponential" has incompatible type "str"',
}


@pytest.mark.slow
def test_a_type_checker_sees_the_names_of_a_users_script(tmp_path: Path) -> None:
    """mypy --strict, as in pyproject.toml, so that it finds what `make lint` has left in its cache."""
    imports = "\n".join(
        f"from dvaepp.{family} import {name} as {family}_{name}" for family in MODULES for name, _ in _named(family)
    )
    (tmp_path / "right.py").write_text(RIGHT.format(imports=imports))
    assert _mypy(tmp_path / "right.py") == []
    (tmp_path / "wrong.py").write_text("\n".join(["import dvaepp", *WRONG]))
    found = _mypy(tmp_path / "wrong.py")
    for line, (code, message) in enumerate(WRONG.items(), start=2):
        assert any(f":{line}: error: {message}" in text for text in found), (code, found)


def _mypy(script: Path) -> list[str]:
    command = [sys.executable, "-m", "mypy", "--config-file", str(ROOT / "pyproject.toml"), str(script)]
    environment = os.environ | {"MYPYPATH": str(ROOT)}
    found = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    assert found.stderr == ""
    return [line for line in found.stdout.splitlines() if script.name in line]
