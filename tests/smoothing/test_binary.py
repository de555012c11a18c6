import torch

from dvaepp.smoothing.binary import Binary

EXAMPLES = [Binary()]


def test_mean_is_mu_and_values_are_binary() -> None:
    rho = torch.linspace(0.00005, 0.99995, 10_000)
    z = Binary().sample(torch.full((10_000,), 1.0, requires_grad=True), rho)
    assert not z.requires_grad and set(z.tolist()) == {0.0, 1.0}
    assert abs(z.mean().item() - torch.sigmoid(torch.tensor(1.0)).item()) <= 1e-4


def test_certain_units_ignore_the_noise() -> None:
    rho = torch.tensor([0.0, 0.5, 1.0])
    assert Binary().sample(torch.full((3,), torch.inf), rho).tolist() == [1, 1, 1]
    assert Binary().sample(torch.full((3,), -torch.inf), rho).tolist() == [0, 0, 0]
