"""Training steps and the evaluation of every model on the simulated device, with the numbers of the CPU."""

from pathlib import Path

import pytest
import torch
from torch import Tensor

from dvaepp.data import load
from dvaepp.evaluation import log_likelihood
from dvaepp.training.state import build
from dvaepp.training.step import step
from tests.devices.simulated import NAME, Simulation, simulated
from tests.training import toy

MODELS = ["table2.rbm", "table2.rolfe", "table2.joint", "table2.marginal", "table3.rbm", "table3.bernoulli"]
ESTIMATED = ["table1.nvil", "table1.rebar", "table1.concrete"]


def _two_steps(images: Path, name: str, place: str, simulation: Simulation | None = None) -> tuple[Tensor, Tensor]:
    """The loss of the second of two steps, and log p(x) of a few images; what the second step lets cross is counted."""
    recipe = toy.recipe(images, name, 10)
    dataset = load(recipe.data.name, None, recipe.data.path)
    state = build(recipe, dataset, place)
    state, _, _ = step(recipe, dataset, state, place)
    if simulation is not None:
        simulation.copies.clear()
        simulation.waits.clear()
    state, _, loss = step(recipe, dataset, state, place)
    if simulation is not None:  # the images go there, and whether all is finite comes back
        exact = state.model.boltzmann is not None  # a log Z of few units is summed anew, and its machine checked
        assert simulation.copies.total() == 1, simulation.copies
        assert simulation.waits.total() <= (3 if exact else 1), simulation.waits
    x = dataset.images("validation")[:5].to(place)
    generator = torch.Generator(place).manual_seed(0)
    found = log_likelihood(state.model, x, 3, log_z=1.0, generator=generator)
    for tensor in (loss, found, *state.model.state_dict().values()):
        assert tensor.device.type == torch.device(place).type
    return loss.detach().cpu(), found.cpu()


@pytest.mark.parametrize("name", MODELS + ESTIMATED)
def test_models(name: str, tmp_path: Path) -> None:
    images = toy.stripes(tmp_path)
    expected = _two_steps(images, name, "cpu")
    with simulated() as simulation:
        found = _two_steps(images, name, NAME, simulation)
    torch.testing.assert_close(found, expected, rtol=1e-3, atol=1e-3)
