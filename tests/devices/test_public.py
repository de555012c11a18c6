"""Every public function on a device other than the CPU: it runs there, and gives the CPU's numbers.

A case is computed twice from the same seeds, on the CPU and on the simulated device, which refuses tensors and
generators of the other one. Compiled kernels take the CPU's part and plain torch the other's, so that the comparison is
also one between the two.
"""

import importlib
from collections.abc import Callable
from functools import partial, partialmethod
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map

from dvaepp import distributions, log_partition, objectives, samplers
from dvaepp.distributions import DiscretizedLogisticMixture, SmoothedBernoulli
from dvaepp.estimators import MEMBERS as ESTIMATORS
from dvaepp.log_partition import starts
from dvaepp.priors import RBM, BoltzmannMachine, BoltzmannPrior, Directed, DirectedPrior, Factorial
from dvaepp.samplers import blocks, pcd, tempering
from dvaepp.samplers.blocks import base_from_pilot
from dvaepp.samplers.noise import Noise
from dvaepp.samplers.tempering import Tempering
from dvaepp.smoothing import MEMBERS as SMOOTHINGS
from dvaepp.smoothing import Exponential, Gaussian, Overlapping, Smoothing
from tests.devices.simulated import NAME, device, simulated
from tests.estimators.models import FEATURES, Toy

SHORT: dict[str, dict[str, int]] = {  # every operation of the simulated device passes through Python
    "adapt_ladder": {"num_rounds": 1, "num_sweeps": 2, "num_replicas": 2},
    "base_from_pilot": {"num_sweeps": 2, "num_chains": 4},
}
BORROWED = ["samplers.tempering", "log_partition.tempering", "log_partition.ais"]


@pytest.fixture(autouse=True)
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, options in SHORT.items():
        function = partial(getattr(tempering if name == "adapt_ladder" else blocks, name), **options)
        for place in BORROWED:
            module = importlib.import_module(f"dvaepp.{place}")
            if hasattr(module, name):
                monkeypatch.setattr(module, name, function)
    monkeypatch.setattr(starts, "BOUND_SWEEPS", 2)
    monkeypatch.setattr(BoltzmannPrior, "sample", partialmethod(BoltzmannPrior.sample, num_sweeps=3))


class Place:
    """A device, and what a case needs there: all made on the CPU from fixed seeds and moved."""

    def __init__(self, where: torch.device) -> None:
        self.device = where

    def normal(self, *shape: int, seed: int = 0) -> Tensor:
        return torch.randn(shape, generator=torch.Generator("cpu").manual_seed(seed)).to(self.device)

    def uniform(self, *shape: int, seed: int = 1) -> Tensor:
        return torch.rand(shape, generator=torch.Generator("cpu").manual_seed(seed)).to(self.device)

    def generator(self, seed: int = 3) -> torch.Generator:
        return torch.Generator(self.device).manual_seed(seed)

    def prior(self, kind: str) -> BoltzmannPrior:
        """An RBM, a bipartite machine, a ring of five units, or all pairs of them."""
        ring = torch.eye(5).roll(1, 1).bool()
        corners = torch.zeros(5, 5, dtype=torch.bool)
        corners[:2, 2:] = True
        masks = {"bipartite": corners | corners.t(), "ring": ring | ring.t(), "dense": None}
        prior: BoltzmannPrior = RBM(3, 4) if kind == "rbm" else BoltzmannMachine(5, masks[kind])
        generator = torch.Generator("cpu").manual_seed(5)
        with torch.no_grad():
            for parameter in prior.parameters():
                parameter.copy_(torch.randn(parameter.shape, generator=generator) / 2)
        return prior.to(self.device)


def _on_cpu(result: Any) -> Any:
    return tree_map(lambda leaf: leaf.detach().cpu() if isinstance(leaf, Tensor) else leaf, result)


def _check(case: Callable[[Place], Any], atol: float = 1e-5) -> None:
    expected = _on_cpu(case(Place(torch.device("cpu"))))
    with simulated():
        result = case(Place(device()))

        def is_there(leaf: Any) -> None:
            assert not isinstance(leaf, Tensor) or leaf.device.type == NAME

        tree_map(is_there, result)
        found = _on_cpu(result)
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=atol, equal_nan=True)


def _gradients(value: Tensor, leaves: list[Tensor]) -> list[Tensor]:
    return list(torch.autograd.grad(value.sum(), leaves))


def _per_unit(smoothing: Smoothing, place: Place) -> Smoothing:
    """The same smoothing with one value of each parameter per unit, on the device."""
    values = {
        name: torch.full((4,), value, device=place.device).requires_grad_()
        for name, value in vars(smoothing).items()
        if isinstance(value, float)
    }
    return type(smoothing)(**values)


@pytest.mark.parametrize("learned", [False, True])
@pytest.mark.parametrize("stem", SMOOTHINGS)
def test_smoothings(stem: str, learned: bool) -> None:
    example = importlib.import_module(f"tests.smoothing.test_{stem}").EXAMPLES[0]
    if any(isinstance(value, Tensor) for value in vars(example).values()):
        example = SMOOTHINGS[stem]()

    def case(place: Place) -> Any:
        smoothing = _per_unit(example, place) if learned else example
        logits = place.normal(3, 4).requires_grad_()
        zeta = smoothing.sample(logits, place.uniform(3, 4))
        found = [zeta]
        if zeta.requires_grad:
            found += _gradients(zeta, [logits, *smoothing.parameters().values()])
        if isinstance(smoothing, Overlapping):
            z = (logits > 0).float()
            found += [smoothing.log_density(zeta, z), smoothing.log_ratio(zeta), smoothing.cdf(zeta, logits)]
            found += [smoothing.log_prob(zeta, logits), smoothing.log_density(zeta, 1)]
        return found

    _check(case, atol=1e-4)


def _smoothed_bernoulli(place: Place) -> Any:
    beta = torch.full((4,), 7.0, device=place.device)
    q = SmoothedBernoulli(logits=place.normal(3, 4), smoothing=Exponential(beta))
    zeta = q.rsample(generator=place.generator())
    moments = [q.mean, q.variance, q.probs]
    return [zeta, q.sample((2,), place.generator()), q.log_prob(zeta), q.cdf(zeta), q.icdf(zeta), *moments] + [
        q.posterior_logits(zeta),
        q.expand((2, 3, 4)).log_prob(zeta),
    ]


def _mixture(place: Place) -> Any:
    q = DiscretizedLogisticMixture.from_channels(place.normal(2, 20, 3, 3))
    x = q.sample(generator=place.generator())
    return [x, q.log_prob(x)]


DISTRIBUTIONS = {"SmoothedBernoulli": _smoothed_bernoulli, "DiscretizedLogisticMixture": _mixture}


@pytest.mark.parametrize("name", distributions.__all__)
def test_distributions(name: str) -> None:
    _check(DISTRIBUTIONS[name])


def _groups(place: Place, stem: str = "exponential") -> tuple[Smoothing, list[Tensor], list[Tensor]]:
    smoothing = SMOOTHINGS[stem]()
    first = place.normal(6, 3).requires_grad_()
    zeta = smoothing.sample(first, place.uniform(6, 3))
    second = place.normal(6, 4, seed=7) + zeta.sum(1, keepdim=True)
    return smoothing, [first, second], [zeta, smoothing.sample(second, place.uniform(6, 4, seed=8))]


def _kl(place: Place, kind: str, rolfe: bool) -> Any:
    prior = place.prior(kind)
    smoothing, logits, zeta = _groups(place, "spike_exponential" if rolfe else "exponential")
    if kind != "rbm":  # five units
        logits, zeta = [logits[0], logits[1][:, :2]], [zeta[0], zeta[1][:, :2]]
    chains = (place.uniform(8, prior.num_units, seed=9) < 0.5).float()
    log_z = prior.log_z_surrogate(chains)
    if rolfe:
        kl = objectives.rolfe_kl(prior, logits, zeta, log_z)
    else:
        kl = objectives.boltzmann_kl(prior, logits, zeta, smoothing, log_z)
    return [kl, *_gradients(kl, [logits[0], *prior.parameters()])]


def _directed(name: str) -> Callable[[Place], Any]:
    def case(place: Place) -> Any:
        smoothing, logits, zeta = _groups(place)
        priors = [place.normal(3, seed=4), zeta[0] @ place.normal(3, 4, seed=5)]
        more = () if name.startswith("joint") else (zeta, smoothing)
        kl = getattr(objectives, name)(logits, priors, *more)
        return [kl, *_gradients(kl, [logits[0]])]

    return case


def _relaxed(name: str, place: Place) -> Any:
    smoothing, logits, zeta = _groups(place, "gaussian" if name.startswith("gaussian") else "exponential")
    prior = place.prior("rbm")
    kl = getattr(objectives, name)(prior, logits, zeta, smoothing, 1.5)
    return [kl, *_gradients(kl, [logits[0], *prior.parameters()])]


def _prior_kl(place: Place, objective: str) -> Any:
    smoothing, logits, zeta = _groups(place, "spike_exponential" if objective == "rolfe" else "exponential")
    prior = place.prior("rbm") if objective in ("boltzmann", "rolfe") else _directed_prior(place)
    return objectives.prior_kl(objective, prior, logits, zeta, smoothing, 1.5)


def _directed_prior(place: Place) -> Directed:
    network = nn.Linear(3, 4)
    with torch.no_grad():
        network.weight.copy_(torch.arange(12.0).reshape(4, 3) / 9)
        network.bias.fill_(-0.5)
    return Directed([3, 4], [network]).to(place.device)


OBJECTIVES: dict[str, Callable[[Place], Any]] = {
    "boltzmann_kl": lambda place: [_kl(place, kind, False) for kind in ("rbm", "bipartite", "ring", "dense")],
    "rolfe_kl": lambda place: [_kl(place, kind, True) for kind in ("rbm", "bipartite", "ring", "dense")],
    "importance_weighted": lambda place: objectives.importance_weighted(place.normal(5, 6)),
    "kl_balance": lambda place: objectives.kl_balance(place.uniform(5, 6)),
    **{name: partial(_relaxed, name) for name in ("relaxed_kl", "gaussian_integral_kl")},
    "relaxed_log_prior": lambda place: objectives.relaxed_log_prior(
        place.prior("rbm"), place.uniform(6, 7), Exponential(8.0), 1.5
    ),
    "gaussian_integral_log_prior": lambda place: objectives.gaussian_integral_log_prior(
        place.prior("rbm"), place.uniform(6, 7), Gaussian(0.2), 1.5
    ),
    "prior_kl": lambda place: [_prior_kl(place, name) for name in ("boltzmann", "rolfe", "joint", "marginal")],
    **{name: _directed(name) for name in ("joint", "joint_per_group", "marginal", "marginal_per_group")},
}


@pytest.mark.parametrize("name", objectives.__all__)
def test_objectives(name: str) -> None:
    _check(OBJECTIVES[name])


KINDS = ["rbm", "bipartite", "ring", "dense"]


def _clamped(prior: BoltzmannPrior, place: Place) -> Any:
    clamp = torch.arange(prior.num_units, device=place.device) < 2
    values = (place.uniform(prior.num_units, seed=6) < 0.5).float()
    rest = prior.given(clamp, values)
    return [rest.energy(values[2:]), prior.conditional_marginals(clamp, values, place.generator(), num_samples=8)]


@pytest.mark.parametrize("kind", KINDS)
def test_priors(kind: str) -> None:
    def case(place: Place) -> Any:
        prior = place.prior(kind)
        prior.check()
        z = (place.uniform(6, prior.num_units) < 0.5).float()
        block = prior.blocks()[0]
        return [
            prior.energy(z),
            prior.couplings(),
            prior.adjacency(),
            prior.blocks(),
            prior.conditional_logits(z, block),
            prior.free_energy(z, block),
            prior.log_prob(z),
            prior.sample(3, place.generator()),
            _clamped(prior, place),
            [conditional[1:] for conditional in prior.block_form().conditionals],
        ]

    _check(case)


@pytest.mark.parametrize("build", [_directed_prior, lambda place: Factorial([3, 4]).to(place.device)])
def test_directed_priors(build: Callable[[Place], DirectedPrior]) -> None:
    def case(place: Place) -> Any:
        prior = build(place)
        z = prior.sample(6, place.generator())
        return [z, prior.log_prob(z), prior.log_prob(z, place.uniform(6, 7))]

    _check(case)


@pytest.mark.parametrize("kind", KINDS)
def test_samplers(kind: str) -> None:
    def case(place: Place) -> Any:
        prior, generator = place.prior(kind), place.generator()
        found = []
        for name, member in samplers.MEMBERS.items():
            if name != "dimod":  # which samples on the CPU
                chains = pcd.step(prior, pcd.init(prior, 30, generator, sampler=member()), generator, 3, member())
                found.append([chains.z, chains.hot])
        clamp = torch.arange(prior.num_units, device=place.device) < 2
        found += [samplers.gibbs(prior, chains.z, 2, generator, clamp=mask) for mask in (clamp, clamp.expand(30, -1))]
        noise = Noise(generator, place.device)
        run = Tempering(prior, [0.0, 0.4, 0.7, 1.0], 5, base_from_pilot(prior, noise, 8, 6), noise)
        gaps = [run.sweep() for _ in range(4)]
        run.start_from(chains.z)
        return [found, samplers.gibbs(prior, chains.z, 2, generator), run.states(), gaps, run.swap_rates()]

    _check(case)


@pytest.mark.parametrize("kind", KINDS)
def test_log_partition(kind: str) -> None:
    """Of 7 and 5 units, so that every method is quick; chains on both devices have the same noise."""

    def case(place: Place) -> Any:
        prior, short = place.prior(kind), {"num_sweeps": 10, "num_replicas": 4}
        states = (place.uniform(6, prior.num_units) < 0.5).float()
        exact = log_partition.log_partition(prior)
        annealed = log_partition.log_partition(prior, "ais", place.generator(), num_chains=30, num_temperatures=5)
        tempered = log_partition.log_partition(prior, "tempering", place.generator(), **short, initial=states)
        compared = log_partition.compare_starts(prior, states, tempered, place.generator(), **short)
        bound = log_partition.lower_bound(prior, states)
        return [bound, compared[:3], *(found[:2] for found in (exact, annealed, tempered))]

    _check(case)


@pytest.mark.parametrize("sizes", [(4,), (3, 3)], ids=str)
@pytest.mark.parametrize("stem", ESTIMATORS)
def test_estimators(stem: str, sizes: tuple[int, ...]) -> None:
    build = importlib.import_module(f"tests.estimators.test_{stem}").build

    def case(place: Place) -> Any:
        model = _moved(Toy(sizes, 7, torch.float32), place)
        estimator: nn.Module = build(sizes, FEATURES).float().to(place.device)
        found = estimator.estimate(model, place.generator())
        loss = (0.0 if found.own_loss is None else found.own_loss) - found.surrogate.mean()
        leaves = [*model.parameters(), *estimator.parameters()]
        return [found, torch.autograd.grad(loss, leaves, allow_unused=True)]

    _check(case, atol=1e-4)


def _moved(model: Toy, place: Place) -> Toy:
    model = model.to(place.device)
    model.x, model.context = model.x.to(place.device), model.context.to(place.device)
    model.offsets = [offset.to(place.device) for offset in model.offsets]
    return model


def test_a_broken_function_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """One vector that was left on the CPU, deep inside a bound, fails on the other device and nowhere else."""
    log_ratio = Exponential._log_ratio
    monkeypatch.setattr(Exponential, "_log_ratio", lambda self, zeta: log_ratio(self, zeta) + torch.zeros(3))
    with pytest.raises(RuntimeError, match="expected all tensors on one device, got .*simulated:0.*cpu"):
        _check(OBJECTIVES["boltzmann_kl"])
    broken = lambda place: torch.rand(3, generator=torch.Generator("cpu"), device=place.device)  # noqa: E731
    with pytest.raises(RuntimeError, match="expected a generator of simulated:0, got one of cpu"):
        _check(broken)
