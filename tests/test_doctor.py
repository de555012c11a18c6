"""`dvaepp doctor`: what it tells is so."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from dvaepp import data
from dvaepp.cli import main
from dvaepp.kernels import build, policy


@pytest.mark.skipif(build.find_compiler() is None or bool(policy.switched_off()), reason="no compiled code here")
def test_it_tells_of_compiler_kernels_memory_and_every_data_set(capsys: pytest.CaptureFixture[str]) -> None:
    main(["doctor"])
    lines = capsys.readouterr().out.splitlines()
    told = {line[2:26].strip(): line[27:] for line in lines}
    assert {"versions", "compiler", "kernel cache", "threads", "memory", "device cpu"} <= told.keys()
    kernels = sorted(source.stem for source in Path(build.__file__).parent.glob("*.c"))
    assert kernels and all(told[f"kernel {stem}"] == "works" for stem in kernels)
    assert all(f"data {name}" in told for name in data.names())


@pytest.mark.parametrize(
    "environment, line",
    [
        ({"PATH": "/nonexistent", "CC": "nosuch", "DVAEPP_KERNEL": "on"}, "! compiler"),
        ({"DVAEPP_KERNEL": "off"}, "! kernels"),
    ],
)
def test_what_slows_a_machine_down_is_marked(environment: dict[str, str], line: str, tmp_path: Path) -> None:
    variables = {**os.environ, **environment, "XDG_CACHE_HOME": str(tmp_path)}
    command = [sys.executable, "-m", "dvaepp", "doctor"]
    done = subprocess.run(command, env=variables, capture_output=True, text=True)
    assert done.returncode == 0 and any(found.startswith(line) for found in done.stdout.splitlines()), done.stdout
