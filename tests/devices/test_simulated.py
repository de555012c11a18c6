"""The simulated device does what an accelerator would: it refuses mixed devices, and it counts what crosses."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from tests.devices.simulated import Simulation, device, simulated


def _vector(simulation: Simulation) -> Tensor:
    return torch.arange(4, dtype=torch.float32, device=device())


@pytest.mark.parametrize(
    "broken",
    [
        lambda x: x + torch.ones(4, device="cpu"),
        lambda x: torch.ones(4, 4, device="cpu") @ x,
        lambda x: torch.cat([x, torch.ones(4, device="cpu")]),
        lambda x: torch.where(x > 0, torch.ones(4, device="cpu"), x),
        lambda x: x[torch.tensor([0, 1], device="cpu")],
        lambda x: torch.rand(4, generator=torch.Generator("cpu"), device=x.device),
        lambda x: torch.rand(4, generator=torch.Generator(x.device), device="cpu"),
        lambda x: x.numpy(),
    ],
)
def test_mixed_devices_are_refused(broken: Callable[[Tensor], Tensor]) -> None:
    with simulated() as simulation, pytest.raises((RuntimeError, TypeError)):
        broken(_vector(simulation))


@pytest.mark.parametrize(
    ("waiting", "copies", "waits"),
    [
        (lambda x: x.sum().item(), 0, 1),
        (lambda x: bool(x.any()), 0, 1),
        (lambda x: torch.equal(x, x), 0, 1),
        (lambda x: x[x > 1], 0, 1),
        (lambda x: x.nonzero(), 0, 1),
        (lambda x: x.cpu(), 1, 0),
        (lambda x: x + torch.tensor([1.0, 2, 3, 4], device=x.device), 1, 0),
        (lambda x: x.copy_(torch.ones(4, device="cpu")), 1, 0),
        (lambda x: (x * 2 + 1).sigmoid_().view(2, 2).sum(0), 0, 0),
        (lambda x: x.double() + torch.zeros_like(x), 0, 0),
        (lambda x: torch.full((4,), 3.0, device=x.device) + torch.rand(4, device=x.device), 0, 0),
    ],
)
def test_copies_and_waits_are_counted(waiting: Callable[[Tensor], object], copies: int, waits: int) -> None:
    with simulated() as simulation:
        x = _vector(simulation)
        waiting(x)
        assert (simulation.copies.total(), simulation.waits.total()) == (copies, waits)


def test_gradients_stay_on_the_device() -> None:
    with simulated():
        layer = torch.nn.Linear(3, 2).to(device())
        layer(torch.ones(4, 3, device=device())).tanh().sum().backward()
        assert layer.weight.grad is not None and layer.weight.grad.device == device()
