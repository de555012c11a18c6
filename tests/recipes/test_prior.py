"""The prior of a recipe: by name, with its options, or refused in a line; old recipes are read as before."""

from pathlib import Path

import pytest

from dvaepp import recipes
from dvaepp.errors import UsageError
from dvaepp.recipes.prior import PriorConfig


def _prior(*changes: str, name: str = "table2.rbm") -> PriorConfig:
    prior: PriorConfig = recipes.build(name, [], changes).model.prior
    return prior


def test_a_recipe_names_its_prior_and_options_in_any_order() -> None:
    changes = ["model.prior.graph=king", "model.prior.name=boltzmann_machine"]
    assert _prior(*changes) == _prior(*reversed(changes)) == PriorConfig.of("boltzmann_machine", graph="king")
    assert _prior("model.prior.name=boltzmann_machine").options == {"graph": "complete"}
    assert _prior("model.prior=boltzmann_machine").options == {"graph": "complete"}
    assert recipes.build("table2.bm", ["graph=ring"]).model.prior.options == {"graph": "ring"}


def test_a_recipe_comes_back_from_json() -> None:
    recipe = recipes.build("table2.bm", ["graph=king"])
    assert recipes.Recipe.model_validate_json(recipe.model_dump_json()) == recipe


@pytest.mark.parametrize("name", ["table2.rbm", "table2.marginal", "table1.joint"])
def test_recipes_from_before_priors_had_options_are_read(name: str) -> None:
    recipe = recipes.build(name)
    old = recipe.model_dump(mode="json")
    old["model"]["prior"] = old["model"]["prior"]["name"]
    assert recipes.Recipe.model_validate(old) == recipe
    assert recipes.differences(old, recipe) == {}


def test_the_shipped_model_has_an_rbm() -> None:
    text = next(Path(__file__).parents[2].glob("pretrained/table2.rbm*/recipe.json")).read_text()
    assert '"prior": "rbm"' in text
    assert recipes.Recipe.model_validate_json(text).model.prior == PriorConfig.of("rbm")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (["model.prior.name=ising"], "no prior called 'ising'; there are boltzmann_machine, directed, factorial, rbm"),
        (["model.prior.graph=king"], "rbm has no option 'graph': it takes none"),
        (["model.prior.name=boltzmann_machine", "model.prior.graph=kings"], "no graph called 'kings'"),
        (["model.prior.name=boltzmann_machine", "model.prior.graph=3"], "graph of boltzmann_machine is a name, not 3"),
        (["model.prior.name=boltzmann_machine", "model.prior.edges=3"], "has no option 'edges': it takes graph"),
        (["model.prior.name=directed"], "objective 'boltzmann' does not fit"),
        (["model.groups=[1]"], "the prior rbm needs at least 2 units"),
        (["model.prior.name=boltzmann_machine", "model.groups=[100000]"], "GiB of memory"),
    ],
)
def test_what_no_prior_takes_is_refused(changes: list[str], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        recipes.build("table2.rbm", [], changes)
