import torch

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
