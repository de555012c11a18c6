"""Generative models with binary latent variables (DVAE++, ICML 2018), in PyTorch.

Train with `dvaepp.train` and look at the result with `dvaepp.load`; bring networks of your own with `dvaepp.BinaryVAE`,
and data of your own with `dvaepp.data.as_dataset`. The parts serve any model: `dvaepp.smoothing` (Sec. 3) and
`dvaepp.distributions.SmoothedBernoulli`, `dvaepp.priors`, `dvaepp.samplers`, `dvaepp.log_partition`,
`dvaepp.objectives`, `dvaepp.estimators`.

Everything is imported when it is first asked for, because torch is slow to load. `help` of a name says when to choose
it, with an example; examples leave out `import torch` and the imports of names of this library.
"""

import importlib
from typing import TYPE_CHECKING

from dvaepp.version import __version__

if TYPE_CHECKING:
    from dvaepp import (
        codes,
        data,
        distributions,
        errors,
        estimators,
        evaluation,
        hub,
        log_partition,
        models,
        nn,
        objectives,
        priors,
        recipes,
        samplers,
        smoothing,
        training,
    )
    from dvaepp.api import report, train
    from dvaepp.models.binary_vae import BinaryVAE
    from dvaepp.runs import evaluate, load

__all__ = [
    "BinaryVAE",
    "__version__",
    "codes",
    "data",
    "distributions",
    "errors",
    "estimators",
    "evaluate",
    "evaluation",
    "hub",
    "load",
    "log_partition",
    "models",
    "nn",
    "objectives",
    "priors",
    "recipes",
    "report",
    "samplers",
    "smoothing",
    "train",
    "training",
]

_HOMES = {
    "BinaryVAE": "dvaepp.models.binary_vae",
    "evaluate": "dvaepp.runs",
    "load": "dvaepp.runs",
    "report": "dvaepp.api",
    "train": "dvaepp.api",
}

if not TYPE_CHECKING:  # a type checker would take any name for one that this function knows

    def __getattr__(name: str) -> object:
        if name in _HOMES:
            return getattr(importlib.import_module(_HOMES[name]), name)
        if name in __all__:
            return importlib.import_module(f"{__name__}.{name}")
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
