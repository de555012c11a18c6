"""Generative models with binary latent variables (DVAE++, ICML 2018), in PyTorch.

Start at `dvaepp.smoothing` (Sec. 3), `dvaepp.distributions.SmoothedBernoulli`, or train with `dvaepp.train`.
"""

from typing import Any

from dvaepp.version import __version__

__all__ = ["__version__", "load", "train"]


def __getattr__(name: str) -> Any:
    """`dvaepp.train(recipe, run_dir)` and `dvaepp.load(run_dir)`, imported when asked for: torch is slow to load."""
    if name == "train":
        from dvaepp.training.loop import train

        return train
    if name == "load":
        from dvaepp.runs import load

        return load
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
