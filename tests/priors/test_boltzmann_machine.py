"""The general machine, and the laws of `priors/base.py` on it and on the RBM, against enumeration in float64."""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor

from dvaepp.errors import UsageError
from dvaepp.priors import RBM, BoltzmannMachine, BoltzmannPrior
from tests import enumeration
from tests.enumeration import Array

DRAWS = 20_000
STANDARD_ERRORS = 5  # failure rate 6e-7 per component; the seed is fixed, so a test never flickers


Mask = NDArray[np.bool_]


class Example(NamedTuple):
    """A prior and, from the same random numbers, what the oracle needs."""

    prior: BoltzmannPrior
    bias: Array
    coupling: Array


def _bipartite(left: int, right: int) -> Mask:
    side = np.arange(left + right) < left
    return side[:, None] != side[None, :]


def _sparse(units: int, seed: int = 5) -> Mask:
    upper = np.triu(np.random.default_rng(seed).random((units, units)) < 0.4, 1)
    return upper | upper.T


def _rbm(left: int, right: int) -> Example:
    rng = np.random.default_rng(1)
    bias, weight = rng.normal(size=left + right), rng.normal(size=(left, right))
    prior = RBM(left, right).double()
    with torch.no_grad():
        prior.bias_left.copy_(torch.tensor(bias[:left]))
        prior.bias_right.copy_(torch.tensor(bias[left:]))
        prior.weight.copy_(torch.tensor(weight))
    coupling = np.zeros((left + right, left + right))
    coupling[:left, left:] = weight
    return Example(prior, bias, coupling + coupling.T)


def _machine(units: int, mask: Mask | None = None) -> Example:
    """The whole square of `weight` is filled: what lies below the diagonal or outside the mask must not count."""
    rng = np.random.default_rng(2)
    bias, weight = rng.normal(size=units), rng.normal(size=(units, units))
    prior = BoltzmannMachine(units, None if mask is None else torch.tensor(mask)).double()
    with torch.no_grad():
        prior.bias.copy_(torch.tensor(bias))
        prior.weight.copy_(torch.tensor(weight))
    coupling = np.triu(weight if mask is None else np.where(mask, weight, 0), 1)
    return Example(prior, bias, coupling + coupling.T)


def _on(units: int, graph: object) -> BoltzmannMachine:
    prior = BoltzmannMachine(units, graph)
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in prior.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator))
    return prior


EXAMPLES = [lambda: _on(1, None), lambda: _on(5, None), lambda: _on(6, "king"), lambda: _on(7, [(0, 1), (5, 2)])]


def _examples() -> dict[str, Example]:
    return {
        "RBM(3, 4)": _rbm(3, 4),
        "RBM(1, 1)": _rbm(1, 1),
        "dense": _machine(6),
        "one unit": _machine(1),
        "sparse": _machine(8, _sparse(8)),
        "RBM-shaped mask": _machine(7, _bipartite(3, 4)),
    }


every = pytest.mark.parametrize("example", [pytest.param(e, id=name) for name, e in _examples().items()])


def _states(example: Example) -> Tensor:
    return torch.tensor(enumeration.states(len(example.bias)))


def _close(actual: Tensor, expected: Array | list[float]) -> bool:
    expected = np.asarray(expected)
    return actual.shape == expected.shape and bool(np.allclose(actual.detach().numpy(), expected, rtol=0, atol=1e-12))


def test_energy_of_four_units_by_hand() -> None:
    prior = BoltzmannMachine(4)
    with torch.no_grad():
        prior.bias.copy_(torch.tensor([1.0, -2.0, 0.5, 3.0]))
        prior.weight.copy_(torch.tensor([[9, 1, -1, 2], [9, 9, 4, -3], [9, 9, 9, 0.5], [9, 9, 9, 9]]))
    z = torch.tensor([[0, 0, 0, 0], [0, 0, 0, 1], [1, 1, 0, 1], [1, 1, 1, 1]]).float()
    assert prior.energy(z).tolist() == [0, -3, -(1 - 2 + 3) - (1 + 2 - 3), -2.5 - 3.5]
    assert prior.couplings().bias.tolist() == [1, -2, 0.5, 3]
    assert prior.couplings().matrix.tolist() == [[0, 1, -1, 2], [1, 0, 4, -3], [-1, 4, 0, 0.5], [2, -3, 0.5, 0]]


@every
def test_energy_equals_enumeration_on_all_states(example: Example) -> None:
    expected = enumeration.energies(example.bias, example.coupling)
    assert _close(example.prior.energy(_states(example)), expected)
    assert not _close(-example.prior.energy(_states(example)), expected)


@every
def test_couplings_are_symmetric_with_zero_diagonal(example: Example) -> None:
    bias, matrix = example.prior.couplings()
    assert _close(bias, example.bias) and _close(matrix, example.coupling)


@every
def test_conditional_logits_equal_enumeration(example: Example) -> None:
    z = _states(example)
    units = range(len(example.bias))
    rows = [
        [enumeration.conditional_logit(state, i, example.bias, example.coupling) for i in units] for state in z.numpy()
    ]
    expected = np.array(rows)
    assert _close(example.prior.conditional_logits(z, slice(None)), expected)
    some = list(units)[::-2]
    assert _close(example.prior.conditional_logits(z, torch.tensor(some)), expected[:, some])


@every
def test_free_energy_equals_enumeration_and_ignores_the_summed_units(example: Example) -> None:
    z = _states(example)
    for block in example.prior.blocks():
        expected = [
            enumeration.free_energy(state, block.tolist(), example.bias, example.coupling) for state in z.numpy()
        ]
        assert _close(example.prior.free_energy(z, block), expected)
        nonsense = z.clone()
        nonsense[:, block] = torch.nan
        assert _close(example.prior.free_energy(nonsense, block), expected)
        assert not _close(example.prior.energy(z), expected)


def test_free_energy_of_coupled_units_is_not_what_it_says() -> None:
    """Why `summed` must be one block: a dense machine's units are not independent given the rest."""
    example = _machine(6)
    z = _states(example)[:1]
    expected = enumeration.free_energy(z[0].numpy(), [0, 1], example.bias, example.coupling)
    assert not _close(example.prior.free_energy(z, slice(0, 2)), [expected])


@every
def test_blocks_cover_every_unit_once_without_inner_couplings(example: Example) -> None:
    blocks = [block.tolist() for block in example.prior.blocks()]
    assert sorted(sum(blocks, [])) == list(range(len(example.bias)))
    assert not any(example.coupling[np.ix_(block, block)].any() for block in blocks)


@pytest.mark.parametrize("seed", range(20))
def test_blocks_of_a_random_mask_hold_no_coupled_units(seed: int) -> None:
    mask = _sparse(10, seed)
    blocks = [block.tolist() for block in _machine(10, mask).prior.blocks()]
    assert sorted(sum(blocks, [])) == list(range(10)) and len(blocks) < 10
    assert not any(mask[np.ix_(block, block)].any() for block in blocks)


@pytest.mark.parametrize(
    ("mask", "count"),
    [
        pytest.param(None, 6, id="dense: one unit at a time"),
        pytest.param(_bipartite(2, 4), 2, id="RBM-shaped: two sides"),
        pytest.param(np.zeros((6, 6), dtype=bool), 1, id="independent units: one block"),
        pytest.param(np.eye(6, k=1, dtype=bool) | np.eye(6, k=-1, dtype=bool), 2, id="chain: odd and even"),
    ],
)
def test_number_of_blocks(mask: Mask | None, count: int) -> None:
    assert len(_machine(6, mask).prior.blocks()) == count


def test_an_odd_ring_needs_three_blocks() -> None:
    ring = np.roll(np.eye(5, dtype=bool), 1, 1)
    assert len(_machine(5, ring | ring.T).prior.blocks()) == 3


def test_couplings_outside_the_mask_take_no_gradient() -> None:
    mask = _sparse(8)
    prior = _machine(8, mask).prior
    (grad,) = torch.autograd.grad(prior.energy(torch.ones(8, dtype=torch.float64)), [prior.get_parameter("weight")])
    assert np.array_equal(grad.numpy() != 0, np.triu(mask, 1))


def test_an_rbm_is_the_machine_with_its_mask() -> None:
    rbm, z = _rbm(3, 4), torch.tensor(enumeration.states(7))
    machine = BoltzmannMachine(7, torch.tensor(_bipartite(3, 4))).double()
    with torch.no_grad():
        machine.bias.copy_(torch.tensor(rbm.bias))
        machine.weight.copy_(torch.tensor(rbm.coupling))
    torch.testing.assert_close(machine.energy(z), rbm.prior.energy(z))
    assert [b.tolist() for b in rbm.prior.blocks()] == sorted(b.tolist() for b in machine.blocks())


# log Z surrogate (App. E). The oracle: d log Z / d b_i = E[z_i], d log Z / d W_ij = E[z_i z_j].

surrogates = pytest.mark.parametrize(
    "example", [pytest.param(_rbm(6, 6), id="RBM(6, 6)"), pytest.param(_machine(8), id="dense")]
)
Surrogate = Callable[[Tensor], Tensor]


def _shaped(example: Example, first: Array, second: Array) -> Array:
    """Values per bias and per pair of units, in the order of the prior's flattened parameters."""
    if isinstance(example.prior, RBM):
        n = example.prior.num_left
        return np.concatenate([first[:n], first[n:], second[:n, n:].ravel()])
    return np.concatenate([first, np.triu(second, 1).ravel()])


def _gradient(example: Example, value: Tensor) -> Array:
    parameters = list(example.prior.parameters())
    grads = torch.autograd.grad(value, parameters, allow_unused=True)
    pairs = zip(parameters, grads, strict=True)
    return np.concatenate([np.zeros(p.numel()) if g is None else g.flatten().numpy() for p, g in pairs])


def _expected_gradient(example: Example, surrogate: Surrogate) -> Array:
    """Σ_z p(z) ∇ surrogate on the single chain z."""
    p = enumeration.probabilities(example.bias, example.coupling)
    return sum(p_z * _gradient(example, surrogate(z[None])) for p_z, z in zip(p, _states(example), strict=True))


@surrogates
def test_expected_gradient_of_the_surrogate_is_that_of_log_z(example: Example) -> None:
    true = _shaped(example, *enumeration.moments(example.bias, example.coupling))
    assert np.abs(_expected_gradient(example, example.prior.log_z_surrogate) - true).max() < 1e-10


def test_the_surrogate_test_sees_a_wrong_sign_and_a_missing_bias() -> None:
    example = _machine(5)
    bias = example.prior.get_parameter("bias")
    wrong: dict[str, Surrogate] = {
        "sign": lambda z: example.prior.energy(z).mean(),
        "bias": lambda z: (-example.prior.energy(z) - z @ bias).mean(),
    }
    true = _shaped(example, *enumeration.moments(example.bias, example.coupling))
    assert np.abs(_expected_gradient(example, example.prior.log_z_surrogate) - true).max() < 1e-10
    for name, surrogate in wrong.items():
        assert np.abs(_expected_gradient(example, surrogate) - true).max() > 0.1, name


def _deviation(example: Example, surrogate: Surrogate, dtype: torch.dtype = torch.float64) -> float:
    """Largest distance, in standard errors of DRAWS exact samples, from the gradient of log Z."""
    p = enumeration.probabilities(example.bias, example.coupling)
    drawn = np.random.default_rng(3).choice(len(p), size=DRAWS, p=p / p.sum())
    gradient = _gradient(example, surrogate(_states(example)[drawn].to(dtype)))
    true = _shaped(example, *enumeration.moments(example.bias, example.coupling))
    error = np.sqrt(true * (1 - true) / DRAWS)  # of the mean of z_i or z_i z_j, which are Bernoulli
    assert not gradient[error == 0].any()  # couplings that do not exist
    return float((np.abs(gradient - true)[error > 0] / error[error > 0]).max())


@surrogates
def test_surrogate_on_exact_samples_lies_within_five_standard_errors(example: Example) -> None:
    prior = example.prior
    assert _deviation(example, prior.log_z_surrogate) < STANDARD_ERRORS
    assert _deviation(example, prior.log_z_surrogate, torch.uint8) < STANDARD_ERRORS  # chains as a sampler keeps them
    wrong: dict[str, Surrogate] = {
        "sign": lambda z: prior.energy(z).mean(),
        "bias": lambda z: (-prior.energy(z) - z @ prior.couplings().bias).mean(),
        "sum instead of mean": lambda z: -prior.energy(z).sum(),
    }
    for name, surrogate in wrong.items():
        assert _deviation(example, surrogate) > 4 * STANDARD_ERRORS, name


@every
def test_no_gradient_flows_into_the_chains(example: Example) -> None:
    chains = _states(example).requires_grad_()
    value = example.prior.log_z_surrogate(chains)
    (grad,) = torch.autograd.grad(value, chains, allow_unused=True)
    assert value.shape == () and grad is None


@pytest.mark.parametrize("units", [0, -2])
def test_a_machine_without_units_is_refused(units: int) -> None:
    with pytest.raises(UsageError, match=f"num_units must be at least 1, got {units}"):
        BoltzmannMachine(units)


@pytest.mark.parametrize("mask", [torch.triu(torch.ones(3, 3)), torch.ones(3, 2), torch.ones(4, 4), torch.ones(3)])
def test_a_mask_that_is_not_symmetric_or_has_another_shape_is_refused(mask: Tensor) -> None:
    with pytest.raises(UsageError, match="mask must (be symmetric|have shape)"):
        BoltzmannMachine(3, mask)


@pytest.mark.parametrize("name", ["bias", "weight"])
def test_a_parameter_that_is_not_finite_is_named(name: str) -> None:
    prior = _machine(4).prior
    prior.check()
    with torch.no_grad():
        prior.get_parameter(name).view(-1)[:2] = torch.nan
    with pytest.raises(ValueError, match=f"^{name} of the prior must be finite, got 2 values"):
        prior.check()


def test_the_representation_counts_couplings() -> None:
    assert repr(_machine(7, _bipartite(3, 4)).prior) == "BoltzmannMachine(7, couplings=12)"


@pytest.mark.parametrize("side", [3, 8])
def test_a_bipartite_graph_gives_two_blocks_however_numbered(side: int) -> None:
    """A crown graph with interleaved numbering, on which a greedy colouring needs a block per unit of a side."""
    even, odd = torch.arange(0, 2 * side, 2), torch.arange(1, 2 * side, 2)
    mask = torch.zeros(2 * side, 2 * side, dtype=torch.bool)
    for i in range(side):
        for j in range(side):
            if i != j:
                mask[even[i], odd[j]] = mask[odd[j], even[i]] = True
    assert len(BoltzmannMachine(2 * side, mask).blocks()) == 2


def test_what_the_mask_hides_cannot_spread() -> None:
    machine = BoltzmannMachine(3)
    with torch.no_grad():
        machine.weight[2, 0] = torch.nan  # below the diagonal: takes no part
    assert torch.isfinite(machine.energy(torch.ones(3)))
    assert torch.isfinite(machine.couplings().matrix).all()


def test_states_of_another_width_are_refused() -> None:
    for prior in (RBM(2, 3), BoltzmannMachine(5)):
        with pytest.raises(ValueError, match=r"z must have shape \(..., 5\), got \(1, 3\)"):
            prior.energy(torch.ones(1, 3))
        assert prior.energy(torch.ones(2, 5, dtype=torch.uint8)).shape == (2,)
