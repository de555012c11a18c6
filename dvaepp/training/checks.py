"""What is refused before anything is built: too many processes, images of another kind."""

from dvaepp import ranks
from dvaepp.data import Dataset
from dvaepp.errors import UsageError
from dvaepp.recipes.schema import Recipe


def check_processes(recipe: Recipe) -> None:
    """Refuse more processes than can share a batch and the chains."""
    n = ranks.size()
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
