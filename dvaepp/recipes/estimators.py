"""Gradient estimators beyond the paper on the models of Table 1 (Sec. 7.1), with the same settings.

docs/estimators.md says which of them are biased.
"""

from dvaepp.recipes import table1
from dvaepp.recipes.schema import Recipe


def relax(dataset: str = "mnist_static", linear: bool = True, layers: int = 1, seed: int = 0) -> Recipe:
    """REBAR with a learned control variate beside the relaxed model."""
    return table1._estimated("estimators.relax", dataset, linear, seed, layers)


def vimco(
    dataset: str = "mnist_static", linear: bool = True, layers: int = 1, samples: int = 5, seed: int = 0
) -> Recipe:
    """K-sample bound; each sample's baseline comes from the others."""
    return table1._estimated("estimators.vimco", dataset, linear, seed, layers, num_samples=samples)


def arm(dataset: str = "mnist_static", linear: bool = True, layers: int = 1, seed: int = 0) -> Recipe:
    """An antithetic pair from one uniform draw."""
    return table1._estimated("estimators.arm", dataset, linear, seed, layers)


def disarm(dataset: str = "mnist_static", linear: bool = True, layers: int = 1, seed: int = 0) -> Recipe:
    """ARM with the uniform draw averaged out given its pair."""
    return table1._estimated("estimators.disarm", dataset, linear, seed, layers)


def straight_through(dataset: str = "mnist_static", linear: bool = True, layers: int = 1, seed: int = 0) -> Recipe:
    """Gradient at the binary sample as if it were its mean; biased."""
    return table1._estimated("estimators.straight_through", dataset, linear, seed, layers)


def gumbel_rao(dataset: str = "mnist_static", linear: bool = True, layers: int = 1, seed: int = 0) -> Recipe:
    """Straight-through Concrete averaged over relaxations of the same binary sample; biased."""
    return table1._estimated("estimators.gumbel_rao", dataset, linear, seed, layers)
