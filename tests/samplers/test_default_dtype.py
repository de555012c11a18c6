"""Samplers and log Z take no type from torch's global default."""

from collections.abc import Iterator

import pytest
import torch
from torch import Tensor

from dvaepp.kernels import gibbs as kernel
from dvaepp.log_partition import log_partition
from dvaepp.priors import RBM, BoltzmannMachine, BoltzmannPrior
from dvaepp.samplers import gibbs, pcd
from tests.samplers.test_gibbs import _randomize, _sparse_mask

PRIORS = {
    "rbm": lambda: _randomize(RBM(4, 5)),
    "dense machine": lambda: _randomize(BoltzmannMachine(6)),
    "ring with a chord": lambda: _randomize(BoltzmannMachine(8, _sparse_mask())),
}


@pytest.fixture(params=["kernel", "plain"])
def path(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    if request.param == "plain":
        monkeypatch.setenv("DVAEPP_KERNEL", "-gibbs")
    elif not kernel.available():
        pytest.skip("no C compiler here")
    yield request.param
    torch.set_default_dtype(torch.float32)


def _results(prior: BoltzmannPrior) -> list[Tensor]:
    chains = pcd.init(prior, 20, torch.Generator().manual_seed(0)).z
    sampled = gibbs(prior, chains, 3, torch.Generator().manual_seed(1))
    options = {"exact": {}, "ais": {"num_chains": 50, "num_temperatures": 20}, "tempering": {"num_sweeps": 20}}
    found = [log_partition(prior, name, torch.Generator().manual_seed(2), **o) for name, o in options.items()]
    numbers = [number for f in found for number in (f.value, f.standard_error)]
    return [chains, sampled, torch.tensor(numbers, dtype=torch.float64)]


@pytest.mark.parametrize("name", PRIORS)
def test_bits_do_not_depend_on_the_default_dtype(name: str, path: str) -> None:
    prior = PRIORS[name]()
    expected = _results(prior)
    torch.set_default_dtype(torch.float64)
    for found, wanted in zip(_results(prior), expected, strict=True):
        assert found.dtype == wanted.dtype and torch.equal(found, wanted)
