"""Laws every prior obeys, run on every member the registry finds, against enumeration.

A member `dvaepp/priors/<stem>.py` comes with `tests/priors/test_<stem>.py`, which names EXAMPLES: functions that make a
prior of at most eight units with random parameters.
"""

import importlib
import inspect
from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from dvaepp.log_partition import log_partition
from dvaepp.objectives import prior_kl
from dvaepp.priors import MEMBERS, RBM, BoltzmannPrior, DirectedPrior, Factorial, Prior
from dvaepp.smoothing import Exponential
from tests import enumeration
from tests.samplers.states import P_VALUE, p_value

DRAWS = 4000
Make = Callable[[], Prior]


def _examples(kind: type[Prior]) -> list:
    params = []
    for stem, member in MEMBERS.items():
        if issubclass(member, kind):
            module = importlib.import_module(f"tests.priors.test_{stem}")
            assert module.EXAMPLES, f"{module.__name__} names no EXAMPLES"
            params += [pytest.param(make, id=f"{stem}-{k}") for k, make in enumerate(module.EXAMPLES)]
    return params


every = pytest.mark.parametrize("make", _examples(Prior))
boltzmann = pytest.mark.parametrize("make", _examples(BoltzmannPrior))
directed = pytest.mark.parametrize("make", _examples(DirectedPrior))


def _states(prior: Prior) -> Tensor:
    return torch.tensor(enumeration.states(prior.num_units))


def _oracle(prior: BoltzmannPrior) -> tuple[np.ndarray, np.ndarray]:
    bias, matrix = prior.couplings()
    return bias.detach().double().numpy(), matrix.detach().double().numpy()


def _log_z(prior: Prior) -> float | None:
    return enumeration.log_partition(*_oracle(prior)) if isinstance(prior, BoltzmannPrior) else None


def normalises(prior: Prior) -> None:
    log_p = prior.log_prob(_states(prior), log_z=_log_z(prior))
    assert torch.logsumexp(log_p, 0).item() == pytest.approx(0, abs=1e-10)


def samples_follow_log_prob(prior: Prior) -> None:
    """Chi-squared over all states, failure rate 1e-6."""
    p = prior.log_prob(_states(prior), log_z=_log_z(prior)).exp().detach().numpy()
    z = prior.sample(DRAWS, torch.Generator().manual_seed(0))
    assert z.shape == (DRAWS, prior.num_units) and not z.requires_grad
    if prior.num_units > 1:
        assert p_value(z.float(), p / p.sum()) > P_VALUE
    else:
        assert abs(z.double().mean().item() - p[1]) < 5 * np.sqrt(p[0] * p[1] / DRAWS)


@every
def test_probabilities_sum_to_one(make: Make) -> None:
    normalises(make().double())


@every
def test_samples_follow_log_prob(make: Make) -> None:
    samples_follow_log_prob(make().double())


@every
def test_samples_are_a_function_of_the_generator(make: Make) -> None:
    prior = make()
    first, again = (prior.sample(20, torch.Generator().manual_seed(3)) for _ in range(2))
    other = prior.sample(200, torch.Generator().manual_seed(4))
    assert torch.equal(first, again) and first.dtype == torch.float32
    assert ((other == 0) | (other == 1)).all() and not torch.equal(first, other[:20])


@every
def test_a_kind_and_a_way_to_build_it_are_stated(make: Make) -> None:
    prior = make()
    assert prior.kind == ("undirected" if isinstance(prior, BoltzmannPrior) else "directed")
    parameters = list(inspect.signature(type(prior).for_groups).parameters.values())
    assert [p.name for p in parameters[:2]] == ["group_sizes", "network"]
    assert all(p.kind is p.KEYWORD_ONLY and p.default is not p.empty for p in parameters[2:])
    built = type(prior).for_groups([3, 2], _network)
    assert built.num_units == 5 and built.log_prob(torch.ones(2, 5)).shape == (2,)


class _Linear(nn.Linear):
    def forward(self, *groups: Tensor) -> Tensor:
        return super().forward(torch.cat(groups, -1))


def _network(inputs: int, outputs: int) -> nn.Module:
    return _Linear(inputs, outputs)


@every
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_parameters_give_type_and_device(make: Make, dtype: torch.dtype) -> None:
    prior = make()
    assert {p.dtype for p in prior.parameters()} == {torch.float32}
    prior = prior.to(dtype)
    z = torch.ones(3, prior.num_units, dtype=torch.uint8)
    assert prior.unnormalized_log_prob(z).dtype == dtype and prior.sample(2).dtype == dtype
    elsewhere = prior.to("meta")
    assert elsewhere.unnormalized_log_prob(z.to("meta")).device.type == "meta"


@every
def test_the_default_device_and_type_change_nothing(make: Make) -> None:
    prior = make()
    expected = prior.sample(8, torch.Generator("cpu").manual_seed(0)), prior.unnormalized_log_prob(_states(prior))
    torch.set_default_dtype(torch.float64)
    try:
        with torch.device("meta"):
            found = prior.sample(8, torch.Generator("cpu").manual_seed(0))
        assert torch.equal(found, expected[0]) and found.dtype == torch.float32
        torch.testing.assert_close(prior.unnormalized_log_prob(_states(prior)), expected[1])
    finally:
        torch.set_default_dtype(torch.float32)


@every
def test_a_state_dict_comes_back(make: Make) -> None:
    prior, other = make(), make()
    with torch.no_grad():
        for parameter in other.parameters():
            parameter.zero_()
    other.load_state_dict(prior.state_dict())
    assert torch.equal(other.unnormalized_log_prob(_states(prior)), prior.unnormalized_log_prob(_states(prior)))


@every
def test_states_of_another_width_are_refused(make: Make) -> None:
    prior = make()
    n = prior.num_units
    with pytest.raises(ValueError, match=rf"z must have shape \(..., {n}\), got \(2, {n + 1}\)"):
        prior.log_prob(torch.zeros(2, n + 1), log_z=0.0)


# Boltzmann machines


def energy_equals_couplings(prior: BoltzmannPrior) -> None:
    np.testing.assert_allclose(
        prior.energy(_states(prior)).detach().numpy(), enumeration.energies(*_oracle(prior)), atol=1e-10
    )


def blocks_are_independent(prior: BoltzmannPrior) -> None:
    blocks = [block.tolist() for block in prior.blocks()]
    assert sorted(sum(blocks, [])) == list(range(prior.num_units))
    linked = prior.adjacency().numpy()
    assert np.array_equal(linked, linked.T) and not linked.diagonal().any()
    assert not _oracle(prior)[1][~linked].any(), "a coupling that the adjacency denies"
    assert not any(linked[np.ix_(block, block)].any() for block in blocks)


def conditional_logits_equal_enumeration(prior: BoltzmannPrior) -> None:
    z, units = _states(prior), range(prior.num_units)
    expected = [[enumeration.conditional_logit(row, i, *_oracle(prior)) for i in units] for row in z.numpy()]
    np.testing.assert_allclose(prior.conditional_logits(z, slice(None)).detach().numpy(), expected, atol=1e-10)


def surrogate_gradient_is_that_of_log_z(prior: BoltzmannPrior) -> None:
    """Σ_z p(z) ∇ surrogate(z) = ∇ log Z, which by the chain rule is E[z_i] ∇b_i + Σ_{i<j} E[z_i z_j] ∇W_ij."""
    bias, matrix = prior.couplings()
    first, second = (torch.from_numpy(m) for m in enumeration.moments(*_oracle(prior)))
    true = _gradient(prior, (bias * first).sum() + (matrix * torch.triu(second, 1)).sum())
    p = torch.from_numpy(enumeration.probabilities(*_oracle(prior)))
    chains = zip(p, _states(prior), strict=True)
    found = _gradient(prior, sum((weight * prior.log_z_surrogate(z[None]) for weight, z in chains), p.new_zeros(())))
    np.testing.assert_allclose(found, true, atol=1e-10)


def _gradient(prior: Prior, value: Tensor) -> np.ndarray:
    grads = torch.autograd.grad(value, list(prior.parameters()), materialize_grads=True)
    return torch.cat([g.flatten() for g in grads]).numpy()


LAWS = [
    normalises,
    energy_equals_couplings,
    blocks_are_independent,
    conditional_logits_equal_enumeration,
    surrogate_gradient_is_that_of_log_z,
]


@boltzmann
@pytest.mark.parametrize("law", LAWS)
def test_boltzmann_laws(law: Callable[[Prior], None], make: Make) -> None:
    law(make().double())


@boltzmann
def test_exact_log_z_equals_enumeration_and_log_prob_uses_it(make: Make) -> None:
    prior = make().double()
    assert isinstance(prior, BoltzmannPrior)
    true = enumeration.log_partition(*_oracle(prior))
    assert log_partition(prior, "exact").value == pytest.approx(true, abs=1e-10)
    z = _states(prior)
    torch.testing.assert_close(prior.log_prob(z), prior.log_prob(z, log_z=true))


@boltzmann
def test_the_block_form_draws_from_the_conditionals(make: Make) -> None:
    """What samplers read, against `conditional_logits`."""
    prior = make().double()
    assert isinstance(prior, BoltzmannPrior)
    order, conditionals = prior.block_form()
    z = _states(prior)
    places = torch.arange(prior.num_units) if order is None else order
    for out, weight, bias in conditionals:
        source = z[:, order] if order is not None else torch.cat([z[:, : out.start], z[:, out.stop :]], 1)
        torch.testing.assert_close(bias + source @ weight, prior.conditional_logits(z, places[out]).detach())


@boltzmann
def test_given_is_the_enumerated_conditional(make: Make) -> None:
    """For every mask: probabilities of the free units, from the joint ones by summing and dividing."""
    prior = make().double()
    assert isinstance(prior, BoltzmannPrior)
    n, states = prior.num_units, _states(prior)
    joint = enumeration.probabilities(*_oracle(prior))
    for number in range(2**n - 1):
        clamp = torch.tensor([bool(number >> i & 1) for i in range(n)])
        values = states[(7 * number) % len(states)]
        agrees = (states[:, clamp] == values[clamp]).all(1).numpy()
        rest = prior.given(clamp, values)
        found = rest.log_prob(states[agrees][:, ~clamp], log_z=log_partition(rest, "exact").value).exp()
        np.testing.assert_allclose(found.detach().numpy(), joint[agrees] / joint[agrees].sum(), atol=1e-10)


class _WrongEnergy(RBM):
    def energy(self, z: Tensor) -> Tensor:
        return super().energy(z) + 0.1 * self.as_states(z)[..., 0]


class _MissedCoupling(RBM):
    def adjacency(self) -> Tensor:
        linked = super().adjacency().clone()
        linked[0, -1] = linked[-1, 0] = False
        return linked


class _CoupledBlock(RBM):
    def blocks(self) -> list[Tensor]:
        first, second = super().blocks()
        return [torch.cat([first, second[:1]]), second[1:]]


class _WrongConditional(RBM):
    def conditional_logits(self, z: Tensor, units: Tensor | slice) -> Tensor:
        return super().conditional_logits(1 - z, units)


class _NoBiasGradient(RBM):
    def log_z_surrogate(self, chains: Tensor) -> Tensor:
        return super().log_z_surrogate(chains) - (chains @ self.couplings().bias).mean()


class _DeafSampler(Factorial):
    def sample(self, n: int, generator: torch.Generator | None = None) -> Tensor:
        return (torch.rand(n, self.num_units, generator=generator) < 0.5).double()


@pytest.mark.parametrize(
    ("law", "broken"),
    [
        (normalises, _WrongEnergy),
        (energy_equals_couplings, _WrongEnergy),
        (blocks_are_independent, _MissedCoupling),
        (blocks_are_independent, _CoupledBlock),
        (conditional_logits_equal_enumeration, _WrongConditional),
        (surrogate_gradient_is_that_of_log_z, _NoBiasGradient),
    ],
)
def test_a_broken_machine_is_caught(law: Callable[[Prior], None], broken: type[RBM]) -> None:
    prior = broken(3, 3).double()
    for parameter in prior.parameters():
        nn.init.normal_(parameter, generator=torch.Generator().manual_seed(1))
    with pytest.raises(AssertionError):
        law(prior)


def test_a_broken_sampler_is_caught() -> None:
    prior = _DeafSampler([3, 2]).double()
    nn.init.normal_(prior.unit_logits, generator=torch.Generator().manual_seed(1))
    with pytest.raises(AssertionError):
        samples_follow_log_prob(prior)


# Directed priors


@directed
def test_the_joint_kl_averages_log_ratios_over_enumerated_z(make: Make) -> None:
    """Eq. 4 given ζ: Σ_z q(z) [log q(z) - log p(z|ζ)], with q factorial and p from `log_prob` on every z."""
    prior = make().double()
    assert isinstance(prior, DirectedPrior)
    generator = torch.Generator().manual_seed(2)
    logits = torch.randn(1, prior.num_units, generator=generator, dtype=torch.float64)
    zeta = torch.rand(1, prior.num_units, generator=generator, dtype=torch.float64)
    z = _states(prior)
    log_q = torch.distributions.Bernoulli(logits=logits).log_prob(z).sum(1)
    expected = (log_q.exp() * (log_q - prior.log_prob(z, zeta.expand_as(z)))).sum()
    groups = [t.split(prior.group_sizes, 1) for t in (logits, zeta)]
    found = prior_kl("joint", prior, *groups, Exponential(8.0))
    assert found.shape == (len(prior.group_sizes), 1)
    torch.testing.assert_close(found.sum(), expected)


def test_objectives_refuse_the_other_kind_of_prior() -> None:
    one = [torch.zeros(1, 2)]
    with pytest.raises(ValueError, match="'joint' does not train an undirected prior: boltzmann or rolfe"):
        prior_kl("joint", RBM(1, 1), one, one, Exponential(8.0))
    with pytest.raises(ValueError, match="'rolfe' does not train a directed prior: joint or marginal"):
        prior_kl("rolfe", Factorial([2]), one, one, Exponential(8.0))
