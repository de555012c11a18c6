"""Completion scripts: bash takes and obeys its own; fish and zsh where they are installed."""

import shutil
import subprocess
from pathlib import Path

import pytest

from dvaepp.cli import COMMANDS
from dvaepp.cli.completion import script

CASES = {  # words of a command line, the last of them unfinished -> what it completes to
    "dvaepp recon": "reconstruct",
    "dvaepp train table2.r": "table2.rbm table2.rolfe",
    "dvaepp evaluate runs/demo --spl": "--split",
    "dvaepp evaluate runs/demo --split va": "validation",
    "dvaepp figure inv": "inverse-cdf",
    "dvaepp figure curves run": "",  # nothing of ours: the shell takes file names
    "dvaepp train --run-dir re": "",  # a folder, not a recipe
    "dvaepp sample mnist-rbm-": "mnist-rbm-2layers",
    "dvaepp data check cif": "cifar10",
    "dvaepp reproduce table": "table1 table2 table3 table5 table6 table7 table8",
}
COMPLETE = """
while read -ra COMP_WORDS; do
    COMP_CWORD=$((${#COMP_WORDS[@]} - 1))
    _dvaepp
    echo "${COMPREPLY[*]}"
done"""


@pytest.fixture(scope="module")
def bash_script() -> str:
    return script("bash")


def test_bash_completes_what_an_argument_can_be(bash_script: str) -> None:
    bash = _shell("bash")
    subprocess.run([bash, "-n"], input=bash_script, text=True, check=True, capture_output=True)
    done = subprocess.run(
        [bash, "-c", bash_script + COMPLETE],
        input="".join(f"{line}\n" for line in CASES),
        text=True,
        capture_output=True,
    )
    assert done.stderr == "" and dict(zip(CASES, done.stdout.splitlines(), strict=True)) == CASES
    assert "complete -o default " in bash_script  # file names where nothing of ours fits


def test_zsh_takes_the_script_of_bash(bash_script: str) -> None:
    assert script("zsh").endswith(bash_script)
    subprocess.run([_shell("zsh"), "-n"], input=script("zsh"), text=True, check=True)


def test_fish_completes_commands_options_and_names(tmp_path: Path) -> None:
    asked = ["dvaepp recon", "dvaepp figure inv", "dvaepp evaluate runs/demo --split va"]
    lines = [script("fish"), *(f'complete -C "{each}"' for each in asked)]
    done = subprocess.run([_shell("fish"), "-N", "-c", "\n".join(lines)], text=True, capture_output=True, cwd=tmp_path)
    assert [line.split("\t")[0] for line in done.stdout.splitlines()] == ["reconstruct", "inverse-cdf", "validation"]


def test_every_command_and_option_is_there(bash_script: str) -> None:
    for name in COMMANDS:
        assert f'"{name} -"*) words="' in bash_script and f"-a {name} -d " in script("fish")


def _shell(name: str) -> str:
    found = shutil.which(name)
    if found is None:
        pytest.skip(f"{name} is not installed")
    return found
