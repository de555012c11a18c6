"""torch.compile(fullgraph=True) over compiled kernels: graphs hold the operations, with the same numbers.

Run as a program by test_operations.py, because type checks of the tests are no graph; it prints what holds.
"""

from collections.abc import Callable

import torch
from torch import Tensor

from dvaepp.kernels import bernoulli
from dvaepp.models.build import with_kernels
from dvaepp.models.local import LocalNetworks
from dvaepp.networks.residual import Residual


def _same(function: Callable[[Tensor], Tensor], x: Tensor) -> None:
    """Values and gradients, compiled and not."""
    leaves = [x.clone().requires_grad_() for _ in range(2)]
    torch.compiler.reset()
    compiled = torch.compile(function, fullgraph=True, backend="aot_eager")
    values = [function(leaves[0]), compiled(leaves[1])]
    torch.testing.assert_close(values[1], values[0])
    gradients = [torch.autograd.grad(value.square().sum(), leaf)[0] for value, leaf in zip(values, leaves, strict=True)]
    torch.testing.assert_close(gradients[1], gradients[0])


def main() -> None:
    g = torch.Generator().manual_seed(0)
    x = (torch.rand(3, 7, generator=g) < 0.5).float()
    _same(lambda logits: bernoulli.log_prob(x, logits), torch.randn(2, 3, 7, generator=g))
    print("log_prob")
    for channels in (32, 128):
        block = with_kernels(Residual(channels, channels, generator=g))
        _same(block, torch.randn(2, channels, 4, 4, generator=g))
    print("blocks")
    networks = with_kernels(LocalNetworks(32, 16, 3, ("32", "32"), g))
    h = [torch.randn(2, 16, 4, 4, generator=g) for _ in range(3)]
    _same(lambda shared: torch.stack(networks.all(shared, h)), torch.randn(2, 32, 4, 4, generator=g))
    print("local networks")


if __name__ == "__main__":
    main()
