"""The prior of a recipe: by name, with its options, or refused in a line; old recipes are read as before."""

import math
import textwrap
from pathlib import Path

import pytest

import dvaepp.priors
from dvaepp import recipes, runs
from dvaepp.errors import UsageError
from dvaepp.recipes.prior import PriorConfig
from dvaepp.registry import members
from dvaepp.training import train
from tests.training import toy


def _prior(*changes: str, name: str = "table2.rbm") -> PriorConfig:
    prior: PriorConfig = recipes.build(name, [], changes).model.prior
    return prior


def test_a_recipe_names_its_prior_and_options_in_any_order() -> None:
    changes = ["model.prior.graph=king", "model.prior.name=boltzmann_machine"]
    assert _prior(*changes) == _prior(*reversed(changes)) == PriorConfig.of("boltzmann_machine", graph="king")
    assert _prior("model.prior.name=boltzmann_machine").parameters == {"graph": "complete"}
    assert _prior("model.prior=boltzmann_machine").parameters == {"graph": "complete"}
    assert recipes.build("table2.bm", ["graph=ring"]).model.prior.parameters == {"graph": "ring"}


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


def test_a_run_from_before_priors_had_options_has_an_rbm() -> None:
    text = (Path(__file__).parent / "recipe_before_priors.json").read_text()
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


TOY = """
    import torch
    from torch import nn

    from dvaepp.priors.base import BoltzmannPrior, Couplings


    class Star(BoltzmannPrior):
        '''The first unit is coupled to all others, with one strength.'''

        def __init__(self, num_units, start):
            super().__init__()
            self.num_units = num_units
            self.bias = nn.Parameter(torch.zeros(num_units))
            self.strength = nn.Parameter(torch.tensor(start))

        @classmethod
        def for_groups(cls, group_sizes, network, *, start: float = 0.0):
            return cls(sum(group_sizes), start)

        def energy(self, z):
            z = self.as_states(z)
            return -(z @ self.bias) - self.strength * z[..., 0] * z[..., 1:].sum(-1)

        def couplings(self):
            return Couplings(self.bias, self.strength * self.adjacency())

        def adjacency(self):
            first = torch.arange(self.num_units, device=self.bias.device) == 0
            return first[:, None] != first[None, :]

        def blocks(self):
            units = torch.arange(self.num_units, device=self.bias.device)
            return [units[:1], units[1:]]
"""


def test_a_prior_in_one_new_file_is_trained_and_evaluated_by_a_recipe(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The file is all that is added: the registry finds it, and no other file knows of it."""
    folder = tmp_path / "more"
    folder.mkdir()
    (folder / "star.py").write_text(textwrap.dedent(TOY))
    monkeypatch.setattr(dvaepp.priors, "__path__", [*dvaepp.priors.__path__, str(folder)])
    monkeypatch.setitem(dvaepp.priors.MEMBERS, "star", members(dvaepp.priors, dvaepp.priors.Prior)["star"])
    changes = ["model.prior.name=star", "model.prior.start=0.25"]
    recipe = recipes.override(toy.recipe(toy.stripes(tmp_path), "table2.rbm", 20), changes)
    train(recipe, tmp_path / "run", say=lambda line: None)
    prior = runs.load(tmp_path / "run").model.boltzmann
    assert prior is not None and type(prior).__name__ == "Star" and prior.get_parameter("strength").item() != 0.25
    result = runs.evaluate(tmp_path / "run", samples=5, limit=5, say=lambda line: None)
    assert math.isfinite(result["log_likelihood"]) and result["log_partition"]["method"] == "exact"
