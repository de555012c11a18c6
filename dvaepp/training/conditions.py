"""The conditions under which a run computes, such as versions, threads and kernels; every checkpoint keeps them.

Recipe, data and seed decide what a run computes, but not its last bits: a sum is rounded in the order in which its
terms are added, and that order depends on these conditions. A run that is resumed under other conditions is equally
good, but not bit for bit the run that it would have been. It says so when it goes on.
"""

from collections.abc import Mapping
from typing import Any

import torch

from dvaepp import distributed
from dvaepp.kernels import policy
from dvaepp.recipes.schema import Recipe
from dvaepp.version import __version__


def conditions(recipe: Recipe, device: str) -> dict[str, str | int]:
    """Versions, compiled functions at work, threads, processes, device, vector instructions and precision."""
    kernels = [name for name in policy.KERNELS if policy.on(name)] if device == "cpu" else []
    return {
        "dvaepp": __version__,
        "torch": str(torch.__version__),
        "kernels": " ".join(kernels) or "none",
        "threads": torch.get_num_threads(),
        "processes": distributed.size(),
        "device": f"{device} {torch.cuda.get_device_name(device)}" if device.startswith("cuda") else device,
        "instructions": torch.backends.cpu.get_cpu_capability(),
        "precision": recipe.training.precision,
    }


def changed(before: Mapping[str, Any], now: Mapping[str, Any]) -> str:
    """A line that names what differs from the checkpoint's conditions; empty where nothing does.

    Checkpoints of earlier versions do not hold their conditions, and are taken to agree.
    """
    known = before.get("conditions", now)
    differing = [f"{name} {known.get(name)} -> {now[name]}" for name in now if known.get(name) != now[name]]
    if not differing:
        return ""
    return f"conditions have changed ({', '.join(differing)}): the run goes on, but not bit for bit as it would have"
