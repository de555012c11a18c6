"""Progress is seen where somebody looks, and nowhere else."""

import sys
from types import SimpleNamespace

import pytest

from dvaepp import progress as module
from dvaepp.progress import in_notebook, progress


class ZMQInteractiveShell:
    """What IPython's shell is called in a notebook."""


def test_a_notebook_gets_a_bar_that_ends_full(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert not in_notebook()
    monkeypatch.setitem(sys.modules, "IPython", SimpleNamespace(get_ipython=ZMQInteractiveShell))
    assert in_notebook()
    monkeypatch.setattr(module, "PATIENCE", -1.0)
    monkeypatch.setattr(module, "REFRESH", 0.0)
    with progress("training", 4) as advance:
        for _ in range(4):
            advance(1)
    shown = capsys.readouterr().err
    assert shown.count("\r") == 4 and shown.endswith("\n")
    assert "░" in shown.split("\r")[1] and "░" not in shown.split("\r")[-1] and "4/4" in shown


def test_elsewhere_nothing_is_shown_unless_asked_for(capsys: pytest.CaptureFixture[str]) -> None:
    with progress("training", 2) as advance:
        advance(2)
    assert capsys.readouterr().err == ""
