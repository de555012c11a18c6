"""How long waiting threads spin: set by the command, never by an import, never against the user's word."""

import os
import subprocess
import sys

import pytest

from dvaepp.spinning import setting

SHOW = "import os; print(os.environ.get('GOMP_SPINCOUNT'))"


@pytest.mark.parametrize("said", [{"GOMP_SPINCOUNT": "7"}, {"OMP_WAIT_POLICY": "active"}])
def test_what_the_user_has_said_stays(said: dict[str, str]) -> None:
    assert setting(said) == {} and setting({}) == {"GOMP_SPINCOUNT": "1000"}


@pytest.mark.parametrize(
    "before, expected",
    [("", "1000"), ("import torch;", "None"), ("import os; os.environ['GOMP_SPINCOUNT'] = '7';", "7")],
)
def test_the_command_sets_it_before_torch_is_loaded_or_not_at_all(before: str, expected: str) -> None:
    code = (
        f"{before}import sys; sys.argv = ['dvaepp', '--version']; from dvaepp.cli import main\ntry: main()\nfinally: "
    )
    assert _shown(f"{code}{SHOW}")[-1] == expected


def test_an_import_sets_nothing() -> None:
    assert _shown(f"import dvaepp; {SHOW}") == ["None"]


def _shown(code: str) -> list[str]:
    free = {key: value for key, value in os.environ.items() if key not in ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY")}
    return subprocess.run([sys.executable, "-c", code], env=free, capture_output=True, text=True).stdout.split()
