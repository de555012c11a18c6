import math

import pytest
import torch

from dvaepp.errors import UsageError
from dvaepp.priors import RBM


def _random(left: int, right: int) -> RBM:
    prior = RBM(left, right)
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in prior.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator))
    return prior


EXAMPLES = [lambda: _random(1, 1), lambda: _random(3, 2), lambda: _random(2, 4)]


def _four_units() -> RBM:
    prior = RBM(2, 2)
    with torch.no_grad():
        prior.bias_left.copy_(torch.tensor([1.0, -2.0]))
        prior.bias_right.copy_(torch.tensor([0.5, 3.0]))
        prior.weight.copy_(torch.tensor([[1.0, -1.0], [2.0, 4.0]]))
    return prior


@pytest.mark.parametrize(
    ("z", "energy"),
    [
        ([0.0, 0.0, 0.0, 0.0], 0.0),
        ([1.0, 0.0, 0.0, 0.0], -1.0),
        ([0.0, 0.0, 1.0, 1.0], -3.5),  # no coupling inside a side
        ([1.0, 0.0, 1.0, 1.0], -1.0 - 3.5 - (1.0 - 1.0)),
        ([1.0, 1.0, 0.0, 1.0], 1.0 - 3.0 - (-1.0 + 4.0)),
        ([1.0, 1.0, 1.0, 1.0], 1.0 - 3.5 - 6.0),
    ],
)
def test_energy_of_four_units_by_hand(z: list[float], energy: float) -> None:
    assert _four_units().energy(torch.tensor(z)).item() == energy


def test_couplings_put_left_before_right() -> None:
    bias, matrix = _four_units().couplings()
    assert bias.tolist() == [1.0, -2.0, 0.5, 3.0]
    assert matrix.tolist() == [[0, 0, 1, -1], [0, 0, 2, 4], [1, 2, 0, 0], [-1, 4, 0, 0]]


def test_couplings_pass_gradients_to_every_parameter() -> None:
    prior = _four_units()
    bias, matrix = prior.couplings()
    grads = torch.autograd.grad(bias.sum() + matrix.sum(), list(prior.parameters()))
    assert [g.unique().tolist() for g in grads] == [[1.0], [1.0], [2.0]]  # a coupling appears twice in the matrix


def test_blocks_are_the_two_sides() -> None:
    assert [block.tolist() for block in RBM(2, 3).blocks()] == [[0, 1], [2, 3, 4]]


def test_a_new_prior_is_uniform() -> None:
    prior = RBM(3, 2)
    z = torch.randint(2, (20, 5), generator=torch.Generator().manual_seed(0)).float()
    assert not prior.energy(z).any() and repr(prior) == "RBM(3, 2)"


def test_leading_axes_are_kept() -> None:
    prior, z = _four_units(), torch.ones(3, 5, 4)
    assert prior.energy(z).shape == (3, 5)
    assert prior.conditional_logits(z, slice(0, 2)).shape == (3, 5, 2)
    assert prior.free_energy(z, slice(2, 4)).shape == (3, 5)


@pytest.mark.parametrize(("left", "right"), [(0, 3), (3, 0), (-1, 2)])
def test_an_empty_side_is_refused(left: int, right: int) -> None:
    with pytest.raises(UsageError, match=f"num_left and num_right must be at least 1, got {left} and {right}"):
        RBM(left, right)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("name", ["bias_left", "bias_right", "weight"])
def test_a_parameter_that_is_not_finite_is_named(name: str, value: float) -> None:
    prior = _four_units()
    prior.check()
    with torch.no_grad():
        prior.get_parameter(name).view(-1)[0] = value
    with pytest.raises(ValueError, match=f"^{name} of the prior must be finite, got 1 values"):
        prior.check()


@pytest.mark.parametrize("shape", [(4,), (3, 5), (0, 4), (2, 3, 4)])
def test_states_of_another_shape_are_refused(shape: tuple[int, ...]) -> None:
    with pytest.raises(ValueError) as error:
        RBM(2, 2).check_states(torch.zeros(shape))
    assert str(error.value) == f"chains must have shape (chains, 4), got {shape}"


@pytest.mark.parametrize("value", [0.5, -1.0, 2.0, math.nan])
def test_states_that_are_not_binary_are_refused(value: float) -> None:
    z = torch.zeros(3, 4)
    RBM(2, 2).check_states(z)
    z[1, 2] = value
    with pytest.raises(ValueError, match=f"^start must be 0 or 1, got {value:g}$"):
        RBM(2, 2).check_states(z, name="start")
