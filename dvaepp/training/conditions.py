"""What, beside recipe, data and seed, decides the last bits of a run: kept in every manifest and compared on resume.

Sums are rounded in the order in which they are made, and that order depends on all of this. A run that is resumed under
other conditions goes on as a run with the same seed would there: equally good, but not the same bits.
"""

from collections.abc import Mapping
from typing import Any

import torch

from dvaepp import ranks
from dvaepp.kernels import policy
from dvaepp.recipes.schema import Recipe
from dvaepp.version import __version__


def conditions(recipe: Recipe, device: str) -> dict[str, str | int]:
    """Versions, compiled functions at work, threads, processes, device, vector instructions and precision."""
    return {
        "dvaepp": __version__,
        "torch": str(torch.__version__),
        "kernels": _kernels() if device == "cpu" else "none",
        "threads": torch.get_num_threads(),
        "processes": ranks.size(),
        "device": f"{device} {torch.cuda.get_device_name(device)}" if device.startswith("cuda") else device,
        "instructions": torch.backends.cpu.get_cpu_capability(),
        "precision": recipe.training.precision,
    }


def _kernels() -> str:
    return " ".join(name for name in policy.KERNELS if policy.on(name)) or "none"


def changed(before: Mapping[str, Any], now: Mapping[str, Any]) -> str:
    """One line on what differs, empty where nothing does; checkpoints of earlier versions have no conditions."""
    known = before.get("conditions", now)
    differing = [f"{name} {known.get(name)} -> {now[name]}" for name in now if known.get(name) != now[name]]
    if not differing:
        return ""
    return f"conditions have changed ({', '.join(differing)}): the run goes on, but not bit for bit as it would have"
