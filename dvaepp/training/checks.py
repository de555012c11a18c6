"""Checks that need no model and therefore come first: the number of processes, and the kind of the images."""

from dvaepp import distributed
from dvaepp.data import Dataset
from dvaepp.errors import UsageError
from dvaepp.recipes.schema import Recipe


def check_processes(recipe: Recipe) -> None:
    """Refuse so many processes that one of them would get no image of a batch, or no chain."""
    n = distributed.size()
    if n > 1 and recipe.estimator is not None:
        raise UsageError("gradient estimators train in one process: start without torchrun")
    if n > min(recipe.training.batch_size, recipe.chains.num_chains):
        raise UsageError(
            f"{n} processes are more than a batch of {recipe.training.batch_size} or {recipe.chains.num_chains} "
            "chains can be shared by: start fewer"
        )


def check_images(recipe: Recipe, dataset: Dataset) -> None:
    """Refuse images that the likelihood of the recipe's model cannot score."""
    expected = recipe.model.expected_likelihood
    if dataset.likelihood != expected:
        kinds = {"bernoulli": "binary images", "logistic_mixture": "images of 256 levels", "gaussian": "numbers"}
        raise UsageError(f"{dataset.name} has {kinds[dataset.likelihood]}; this model takes {kinds[expected]}")
