"""Beyond the paper: the feed-forward models of Table 2 with a relaxed RBM prior, or with averaged weights.

The prior is smoothed like the posterior (`objectives.relaxed`), so that training may use K importance samples. All that
is not named here is Table 2's. β = 40 for one layer and 30 for more are values to start from, found on MNIST with the
power law. An exponential of that β would hardly overlap with its mirror image, so that it keeps Table 2's β.
"""

from dvaepp.recipes import table2
from dvaepp.recipes.schema import Objective, Recipe
from dvaepp.recipes.smoothing import SmoothingConfig

BETA = {1: 40.0}
BETA_OF_MORE_LAYERS = 30.0
AVERAGE = 0.05  # of the schedule: 3000 of 60 000 steps


def _recipe(
    name: str,
    objective: Objective,
    smoothing: str,
    dataset: str,
    layers: int,
    linear: bool,
    samples: int,
    beta: float | None,
    seed: int,
) -> Recipe:
    base = table2.rbm(dataset=dataset, layers=layers, linear=linear, seed=seed)
    beta = BETA.get(layers, BETA_OF_MORE_LAYERS) if beta is None else beta
    parameters = {"scale": beta**-0.5} if smoothing == "gaussian" else {"beta": beta}
    tree = base.model_dump(mode="json") | {
        "name": name,
        "smoothing": SmoothingConfig.of(smoothing, **parameters).model_dump(mode="json"),
        "training": {**base.training.model_dump(mode="json"), "objective": objective, "importance_samples": samples},
    }
    return Recipe.model_validate(tree)


def power_law(
    dataset: str = "mnist_static",
    layers: int = 1,
    linear: bool = True,
    samples: int = 1,
    beta: float | None = None,
    seed: int = 0,
) -> Recipe:
    """A relaxed RBM prior with power-law smoothing, by mean field; `samples` is K of the importance-weighted bound."""
    return _recipe("relaxed.power_law", "relaxed", "power_law", dataset, layers, linear, samples, beta, seed)


def gaussian(
    dataset: str = "mnist_static",
    layers: int = 1,
    linear: bool = True,
    samples: int = 1,
    beta: float | None = None,
    seed: int = 0,
) -> Recipe:
    """A relaxed RBM prior with normal smoothing of variance 1/β, by mean field."""
    return _recipe("relaxed.gaussian", "relaxed", "gaussian", dataset, layers, linear, samples, beta, seed)


def exponential(
    dataset: str = "mnist_static",
    layers: int = 1,
    linear: bool = True,
    samples: int = 1,
    beta: float | None = None,
    seed: int = 0,
) -> Recipe:
    """A relaxed RBM prior with the paper's exponential smoothing, by mean field; β = None is Table 2's."""
    if beta is None:
        beta = table2.exponential_beta(dataset, layers, linear)
    return _recipe("relaxed.exponential", "relaxed", "exponential", dataset, layers, linear, samples, beta, seed)


def gaussian_integral(
    dataset: str = "mnist_static",
    layers: int = 1,
    linear: bool = True,
    samples: int = 1,
    beta: float | None = None,
    seed: int = 0,
) -> Recipe:
    """A relaxed RBM prior by the Gaussian integral, exactly; the posterior's units have the variance 1/β."""
    return _recipe(
        "relaxed.gaussian_integral", "gaussian_integral", "gaussian", dataset, layers, linear, samples, beta, seed
    )


def averaged(
    dataset: str = "mnist_static", layers: int = 1, linear: bool = True, beta: float | None = None, seed: int = 0
) -> Recipe:
    """Table 2's `table2.rbm`, with a second set of weights averaged over 5 % of the schedule."""
    tree = table2.rbm(dataset, layers, linear, beta, seed).model_dump(mode="json")
    return Recipe.model_validate(
        tree | {"name": "relaxed.averaged", "training": {**tree["training"], "average": AVERAGE}}
    )
