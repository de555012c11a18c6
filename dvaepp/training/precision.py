"""The type that a run computes in: float32, float64, or bfloat16 products around float32 weights.

`training.precision=bfloat16` means `torch.autocast`: products and convolutions are bfloat16, while weights, gradients,
optimizer, chains, densities and KLs stay float32. On a CPU, oneDNN may pick matrix instructions that the system does
not let it use, and a signal then ends the process. Therefore a subprocess tries a product first.
"""

import functools
import subprocess
import sys
from contextlib import AbstractContextManager, nullcontext

import torch

from dvaepp.errors import UsageError

WEIGHTS = {"float32": torch.float32, "float64": torch.float64, "bfloat16": torch.float32}
"""The type of weights and images by the name of the precision."""

PROBE = """
import torch
a = torch.ones(128, 128, dtype=torch.bfloat16)
x = torch.ones(2, 32, 8, 8, dtype=torch.bfloat16)
assert float((a @ a)[0, 0]) == 128
assert float(torch.nn.functional.conv2d(x, torch.ones(32, 32, 3, 3, dtype=torch.bfloat16))[0, 0, 0, 0]) == 288
"""


def autocast(precision: str, device: torch.device | str) -> AbstractContextManager[object]:
    """The context in which the loss is computed: autocast for bfloat16, otherwise nothing."""
    if precision != "bfloat16":
        return nullcontext()
    return torch.autocast(torch.device(device).type, torch.bfloat16)


def check(precision: str, device: torch.device | str) -> None:
    """Refuse bfloat16 where a product of it would end the process."""
    if precision == "bfloat16" and torch.device(device).type == "cpu" and not bfloat16_works():
        raise UsageError(
            "training.precision=bfloat16: products of bfloat16 fail on this CPU; set "
            "ONEDNN_MAX_CPU_ISA=AVX512_CORE_BF16 (or AVX512_CORE) in the environment, or train in float32"
        )


@functools.cache
def bfloat16_works() -> bool:
    """Whether a process survives a product and a convolution in bfloat16 on the CPU; tried once, in another process."""
    try:
        return subprocess.run([sys.executable, "-c", PROBE], capture_output=True, timeout=120).returncode == 0
    except (OSError, subprocess.SubprocessError):
        return False
