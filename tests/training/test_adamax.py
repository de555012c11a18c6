from typing import Any

import pytest
import torch

from dvaepp.kernels import policy
from dvaepp.training.adamax import Adamax


def problem() -> tuple[torch.nn.Sequential, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    net = torch.nn.Sequential(torch.nn.Linear(5, 7), torch.nn.Tanh(), torch.nn.Linear(7, 3)).double()
    for p in net.parameters():
        p.data = torch.randn(p.shape, generator=generator, dtype=torch.float64)
    return net, torch.randn(11, 5, generator=generator, dtype=torch.float64)


def test_adamax_equals_that_of_torch_with_weight_decay_in_one_group() -> None:
    results = []
    for kind in (Adamax, torch.optim.Adamax):
        net, x = problem()
        groups = [
            {"params": [net[0].weight, net[2].weight], "weight_decay": 0.01},
            {"params": [net[0].bias, net[2].bias], "weight_decay": 0.0},
        ]
        optimizer = kind(groups, lr=0.05, betas=(0.9, 0.99), eps=1e-8)
        for _ in range(30):
            optimizer.zero_grad(set_to_none=True)
            (net(x) ** 2).mean().backward()
            optimizer.step()
        results.append([p.detach().clone() for p in net.parameters()])
    for ours, theirs in zip(*results, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-12, atol=1e-14)


def test_one_compiled_pass_in_float32_stays_with_torch_in_float64() -> None:
    """With a gradient that is missing and one that does not lie in order; 30 steps drift by rounding alone."""
    if not policy.on("adamax"):
        pytest.skip("no C compiler here, or DVAEPP_KERNEL=off")
    generator = torch.Generator().manual_seed(0)
    shapes = [(3, 5), (40_000,), (), (7, 2, 3)]
    start = [torch.randn(shape, generator=generator) for shape in shapes]
    ours = [torch.nn.Parameter(t.clone()) for t in start]
    theirs = [torch.nn.Parameter(t.double()) for t in start]
    groups: list[Any] = [[{"params": p[:3], "weight_decay": 0.01}, {"params": p[3:]}] for p in (ours, theirs)]
    optimizers = [Adamax(groups[0], lr=0.05), torch.optim.Adamax(groups[1], lr=0.05)]
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    try:
        for step in range(30):
            for a, b in zip(ours, theirs, strict=True):
                g = torch.randn(a.shape, generator=generator)
                b.grad = g.double()
                a.grad = g.flip(0).flip(0).t().contiguous().t() if a.dim() == 2 else g
            ours[3].grad, theirs[3].grad = (
                (None, torch.zeros_like(theirs[3])) if step % 2 else (ours[3].grad, theirs[3].grad)
            )
            for optimizer in optimizers:
                optimizer.step()
    finally:
        torch.set_num_threads(before)
    for a, b in zip(ours, theirs, strict=True):
        torch.testing.assert_close(a.detach().double(), b.detach(), rtol=0, atol=2e-5)
        assert not torch.equal(a.detach().double(), b.detach())
