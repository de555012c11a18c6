"""Recipes of convolutional models that cannot work are refused when they are built, with what would work."""

import json
import re

import pytest

from dvaepp import recipes
from dvaepp.errors import UsageError
from dvaepp.recipes.schema import Recipe

LONG = json.dumps([["16u"]] + [["8u"]] * 5)


@pytest.mark.parametrize(
    "override, message",
    [
        ('model.down1=["32d", "32", "64d"]', "down2 must end at 1 x 1, and ends at 2 x 2: 1 more of its blocks"),
        ('model.down2=["256d"]', "down2 must end at 1 x 1, and ends at 2 x 2: 1 more of its blocks"),
        ('model.down2=["256", "512"]', "down2 must end at 1 x 1, and ends at 4 x 4: 2 more of its blocks"),
        ('model.down2=["256d", "512d", "512d"]', "down2: 512d cannot halve a map of 1 x 1; use one d less"),
        ("model.image_size=28", "down1: 128d cannot halve a map of 7 x 7; use one d less"),
        ("model.image_size=33", "down1: 32d cannot halve a map of 33 x 33"),
        ("model.image_size=64", "down2 must end at 1 x 1, and ends at 2 x 2"),
        ('model.upsample=["128u"]', "upsample must end where down1 does, at 4 x 4, and ends at 2 x 2"),
        ('model.upsample=["8u", "8u", "8u"]', "upsample must end where down1 does, at 4 x 4, and ends at 8 x 8"),
        ('model.context=["16d"]', "context must end at 4 or 8 pixels, and ends at 2"),
        ('model.context=["16u", "16u"]', "context must end at 4 or 8 pixels, and ends at 16"),
        ('model.upsamples=[["16"], ["16u"], ["8u"]]', "upsamples.0 must end at 8 x 8, and ends at 4 x 4"),
        ('model.upsamples=[["16u"], ["16u"], ["8u", "8u"]]', "upsamples.2 must end at 32 x 32, and ends at 64 x 64"),
        (f"model.upsamples={LONG}", "image_size 32 cannot be halved 6 times"),
        ("model.global_groups=3", "3 groups do not divide 16 global units; global_groups may be 1, 2, 4, 8, 16"),
        ('model.posterior=["32d"]', "posterior keeps the size of its map"),
        ('model.prior=["32", "32u"]', "prior keeps the size of its map"),
        ('model.prior=["32x"]', "prior"),
        ('model.down1=["0d"]', "down1"),
        ("model.local_groups=0", "local_groups"),
        ("training.objective=marginal", "objective 'marginal' does not fit an undirected prior"),
        ("training.objective=rolfe", "objective 'rolfe' and smoothing 'spike_exponential' go together"),
        ("model.global_kind=none", "objective 'boltzmann' does not fit a directed prior"),
        ("training.importance_samples=2", "importance_samples above 1 needs an objective that is an importance weight"),
        ("model.groups=[200]", "groups"),
    ],
)
def test_a_recipe_that_cannot_work_is_refused_when_it_is_built(override: str, message: str) -> None:
    with pytest.raises(UsageError, match=re.escape(message)):
        recipes.build("table3.rbm", ["dataset=omniglot"], [override])


@pytest.mark.parametrize(
    "name, override",
    [
        ("table3.rolfe", "model.local_kind=bernoulli"),  # a spike has no density for the marginal KL
        ("table3.bernoulli", "smoothing.name=concrete"),  # not overlapping
        ("table3.rbm", "smoothing.name=concrete"),
        ("table3.rbm", "smoothing.name=exponentail"),
        ("table3.rbm", "training.batch_size=1"),  # batch norm over one 1x1 map
    ],
)
def test_a_recipe_that_would_fail_in_its_first_step_is_refused_when_it_is_built(name: str, override: str) -> None:
    with pytest.raises(UsageError):
        recipes.build(name, ["dataset=omniglot"], [override])


@pytest.mark.parametrize("dataset", ["omniglot", "cifar10"])
def test_the_numbers_of_groups_that_are_offered_are_accepted(dataset: str) -> None:
    with pytest.raises(UsageError) as caught:
        recipes.build("table3.rbm", [f"dataset={dataset}", "groups=3"])
    offered = [int(n) for n in str(caught.value).partition("may be ")[2].split(", ")]
    assert {1, 2, 4} <= set(offered)
    for number in offered:
        recipes.build("table3.rbm", [f"dataset={dataset}", f"groups={number}"])


@pytest.mark.parametrize(
    "overrides",
    [
        ['model.down1=["32d", "32", "64d"]', 'model.down2=["8d", "8d", "8d"]', 'model.upsample=["8u", "8u", "8u"]']
        + ['model.upsamples=[["16"], ["16u"], ["8u"]]'],  # latents on 8x8, read at 4
        ["model.image_size=64", 'model.down2=["8d", "8d", "8d"]', 'model.upsample=["8u", "8u", "8u"]']
        + ['model.upsamples=[["16"], ["16u"], ["8u"], ["8u"]]', "model.conditional=false"],
        ["model.upsamples=[]", 'model.context=["16u", "16u", "16u"]'],
        ["model.posterior=[]", "model.prior=[]"],
        ["model.global_units=2", "model.global_groups=2"],
    ],
)
def test_architectures_of_ones_own_that_fit_are_accepted(overrides: list[str]) -> None:
    recipes.build("table3.rbm", ["dataset=omniglot"], overrides)


def test_without_global_units_their_networks_are_not_asked_for() -> None:
    recipe = recipes.build("ablations.no_global", ["dataset=omniglot"], ['model.down2=["8"]', "model.global_groups=3"])
    assert recipe.model.global_kind == "none"


def test_a_convolutional_recipe_is_read_back_from_its_json() -> None:
    recipe = recipes.build("ablations.decoder", ["dataset=cifar10", "conditional=false"])
    assert Recipe.model_validate_json(recipe.model_dump_json()) == recipe
