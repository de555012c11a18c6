"""Models in half precision and under `torch.autocast`, each beside the same model in float32.

bfloat16 products end the process on machines whose oneDNN picks instructions that the system forbids. So everything
here runs in a process of its own, and only where the probe of `training.precision=bfloat16` comes back.
"""

import subprocess
import sys
from pathlib import Path

import pytest

from dvaepp.errors import UsageError
from dvaepp.training import precision
from dvaepp.training.precision import bfloat16_works


@pytest.mark.slow
@pytest.mark.parametrize("name", ["table2.rbm", "table2.marginal", "table3.rbm", "table3.bernoulli"])
def test_a_trained_model_in_half_precision(name: str, tmp_path: Path) -> None:
    if not bfloat16_works():
        pytest.skip("bfloat16 products end the process on this machine")
    done = subprocess.run(
        [sys.executable, "-m", "tests.half_precision", name, str(tmp_path)], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.split() == ["autocast", "bfloat16", "half", "densities", "training"]


def test_bfloat16_is_refused_where_it_would_end_the_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """The probe dies by a signal, as on the machines in question."""
    monkeypatch.setattr(precision, "PROBE", "import os; os.kill(os.getpid(), 4)")
    precision.bfloat16_works.cache_clear()
    with pytest.raises(UsageError, match="set ONEDNN_MAX_CPU_ISA=AVX512_CORE_BF16"):
        precision.check("bfloat16", "cpu")
    precision.check("float32", "cpu")
    monkeypatch.undo()
    precision.bfloat16_works.cache_clear()
