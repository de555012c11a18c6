"""The sampler of a recipe: by name, with its options, or refused in a line."""

import pytest

from dvaepp import recipes
from dvaepp.errors import UsageError
from dvaepp.samplers import TemperingSampler


def test_a_recipe_names_its_sampler() -> None:
    recipe = recipes.build("table2.rbm", [], ["chains.sampler=tempering", 'chains.options={"num_temperatures": 5}'])
    assert recipe.chains.make() == TemperingSampler(num_temperatures=5)
    assert recipes.Recipe.model_validate_json(recipe.model_dump_json()) == recipe


def test_a_recipe_from_before_samplers_had_names_means_gibbs() -> None:
    recipe = recipes.build("table2.rbm")
    old = recipe.model_dump(mode="json")
    del old["chains"]["sampler"], old["chains"]["options"]
    assert recipes.Recipe.model_validate(old) == recipe
    assert recipes.differences(old, recipe) == {}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (["chains.sampler=annealing"], "no sampler called 'annealing'; there are dimod, gibbs, tempering"),
        (['chains.options={"speed": 3}'], "gibbs takes none, not 'speed'"),
        (
            ["chains.sampler=tempering", 'chains.options={"num_temperatures": "many"}'],
            "options.num_temperatures is a whole number, not 'many'",
        ),
        (
            ["chains.sampler=tempering", 'chains.options={"num_temperatures": 1}'],
            "num_temperatures must be from 2 to 400, got 1",
        ),
        (["chains.sampler=tempering", "chains.num_chains=1000000"], "GiB of memory"),
    ],
)
def test_what_no_sampler_takes_is_refused(changes: list[str], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        recipes.build("table2.rbm", ["layers=2"], changes)
