"""App. I: DVAE++ with one thing changed. Evaluate these at the training β (`dvaepp evaluate --beta training`)."""

from dvaepp.recipes import table3
from dvaepp.recipes.schema import Recipe


def _changed(recipe: Recipe, name: str, **changes: object) -> Recipe:
    return recipe.changed(name=f"ablations.{name}", evaluation={"beta": "training"}, **changes)


def local_groups(groups: int = 16, dataset: str = "cifar10", size: str = "paper", seed: int = 0) -> Recipe:
    """Table 5: the number of groups of local units; the paper has 8, 12, 16, 20 and 24 on CIFAR10."""
    return _changed(table3.rbm(dataset, size, seed=seed), "local_groups", model={"local_groups": groups})


def global_groups(groups: int = 4, dataset: str = "cifar10", size: str = "paper", seed: int = 0) -> Recipe:
    """Table 6: the number of inference groups of global units; the paper has 1, 2 and 4 on CIFAR10."""
    return _changed(table3.rbm(dataset, size, seed=seed), "global_groups", model={"global_groups": groups})


def decoder(conditional: bool = True, dataset: str = "mnist_static", size: str = "paper", seed: int = 0) -> Recipe:
    """Table 7: with and without the conditional decoder."""
    return _changed(table3.rbm(dataset, size, seed=seed), "decoder", model={"conditional": conditional})


def no_global(dataset: str = "mnist_static", size: str = "paper", seed: int = 0) -> Recipe:
    """Table 8: without global units; a learned map takes the place of ζ scaled up."""
    return _changed(table3.continuous(dataset, size, seed=seed), "no_global", model={"global_kind": "none"})


def no_balancing(dataset: str = "mnist_static", size: str = "paper", seed: int = 0) -> Recipe:
    """Table 8: without the balancing coefficients of App. H."""
    return _changed(table3.rbm(dataset, size, seed=seed), "no_balancing", training={"kl_balance": False})
