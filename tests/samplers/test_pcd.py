import numpy as np
import pytest
import torch

from dvaepp.priors import RBM
from dvaepp.samplers import DimodSampler, gibbs, pcd
from tests.samplers.states import all_states, log_weights, probabilities


def test_chains_are_a_record_the_loop_carries() -> None:
    prior = RBM(5, 4)
    generator = torch.Generator().manual_seed(0)
    chains = pcd.init(prior, 200, generator)
    assert chains.z.shape == (200, 9) and chains.num_sweeps == 0 and 0.4 < chains.z.mean() < 0.6
    state = generator.get_state()
    after = pcd.step(prior, chains, generator)
    assert after.num_sweeps == 40  # App. E
    generator.set_state(state)
    assert torch.equal(after.z, gibbs(prior, chains.z, 40, generator))  # nothing hidden: resuming repeats it
    with pytest.raises(ValueError, match="num_chains must be at least 1"):
        pcd.init(prior, 0)


def test_persistent_chains_train_an_rbm_to_its_data() -> None:
    """Maximum likelihood by the surrogate (App. E): the model's moments move to the data's."""
    generator = torch.Generator().manual_seed(1)
    data = torch.tensor([[1.0, 1, 0, 0, 1, 1], [0, 0, 1, 1, 0, 0]])[torch.randint(2, (2000,), generator=generator)]
    data = torch.where(torch.rand(data.shape, generator=generator) < 0.15, 1 - data, data)
    prior = RBM(3, 3)
    optimizer = torch.optim.Adam(prior.parameters(), lr=0.05)
    chains = pcd.init(prior, 200, generator)
    for _ in range(150):
        chains = pcd.step(prior, chains, generator, num_sweeps=5)
        loss = prior.energy(data).mean() + prior.log_z_surrogate(chains.z)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    bias, matrix = (p.detach().double().numpy() for p in prior.couplings())
    p, states = probabilities(log_weights(bias, matrix)), all_states(6)
    model = np.einsum("s,si,sj->ij", p, states, states)[:3, 3:]
    wanted = (data[:, :3].t() @ data[:, 3:] / len(data)).numpy()
    assert np.abs(model - wanted).max() < 0.06
    assert np.abs(0.25 - wanted).max() > 0.1, "the uniform start must be far from the data"


def test_a_dimod_sampler_can_drive_the_chains() -> None:
    samplers = pytest.importorskip("dwave.samplers")
    prior = RBM(3, 3)
    with torch.no_grad():
        prior.weight.normal_(0, 1, generator=torch.Generator().manual_seed(0))
        prior.bias_left.fill_(0.7)
    sampler = DimodSampler(samplers.SimulatedAnnealingSampler(), options={"beta_range": [0.1, 1.0]})
    generator = torch.Generator().manual_seed(2)
    chains = pcd.step(prior, pcd.init(prior, 3000, generator), generator, num_sweeps=200, sampler=sampler)
    bias, matrix = (p.detach().double().numpy() for p in prior.couplings())
    mean = probabilities(log_weights(bias, matrix)) @ all_states(6)
    assert np.abs(chains.z.mean(0).numpy() - mean).max() < 0.06  # 5 standard errors, and the annealer's own bias
    again = pcd.step(prior, pcd.init(prior, 3000, torch.Generator().manual_seed(2)), None, 200, sampler)
    assert again.z.shape == (3000, 6)
