"""torch.compile(fullgraph=True) on smoothings with a closed inverse, on the bound of Sec. 5, on rsample and on losses.

Run as a program by test_transforms.py; it prints what holds. Smoothings without a closed inverse iterate until all
elements are solved, which is no graph.
"""

from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor

from dvaepp.distributions import SmoothedBernoulli
from dvaepp.objectives import boltzmann_kl
from dvaepp.priors import RBM
from dvaepp.smoothing import Exponential, Logistic
from tests.objectives.given import SMOOTHING, Loss, convolutional, feed_forward


def _same(function: Callable[[Tensor, Tensor], Tensor], logits: Tensor, other: Tensor) -> None:
    """Values and gradients, compiled and not."""
    leaves = [logits.clone().requires_grad_() for _ in range(2)]
    compiled = torch.compile(function, fullgraph=True, backend="aot_eager")
    values = [function(leaves[0], other), compiled(leaves[1], other)]
    torch.testing.assert_close(values[1], values[0])
    gradients = [torch.autograd.grad(value.sum(), leaf)[0] for value, leaf in zip(values, leaves, strict=True)]
    torch.testing.assert_close(gradients[1], gradients[0])


def _same_loss(loss: Loss, data: list[Tensor], backend: str) -> None:
    """The loss given its noise, and its gradient in every parameter."""
    parameters, found = list(loss.parameters()), []
    for function in (loss, torch.compile(loss, fullgraph=True, backend=backend)):
        value = function(*data)
        found.append([value, *torch.autograd.grad(value, parameters, materialize_grads=True)])
    torch.testing.assert_close(found[1], found[0])


def main() -> None:
    g = torch.Generator().manual_seed(0)
    rbm, logits, rho = RBM(3, 3), torch.randn(5, 6, generator=g), torch.rand(5, 6, generator=g)
    torch.nn.init.normal_(rbm.weight, generator=g)

    def bound(x: Tensor, noise: Tensor) -> Tensor:
        first = SMOOTHING.sample(x[:, :3], noise[:, :3])
        second = x[:, 3:] + first
        return boltzmann_kl(rbm, [x[:, :3], second], [first, SMOOTHING.sample(second, noise[:, 3:])], SMOOTHING, 0.0)

    members = [Exponential(0.4), Exponential(8.0), Exponential(60.0), Logistic(0.1), Logistic(0.02)]
    for member in members:
        _same(replace(member, validate_args=False).sample, logits, rho)
    print("samples")
    for member in (SMOOTHING, Logistic(0.1, validate_args=False)):
        _same(lambda x, zeta, member=member: member.log_prob(zeta, x), logits, rho)
    print("densities")
    _same(bound, logits, rho)
    print("bound")
    drawn = torch.compile(
        lambda x: SmoothedBernoulli(logits=x, smoothing=SMOOTHING, validate_args=False).rsample(),
        fullgraph=True,
        backend="aot_eager",
    )(logits)
    assert drawn.shape == logits.shape and ((drawn >= 0) & (drawn <= 1)).all() and len(drawn.unique()) > 20
    print("distribution")
    _same_loss(*convolutional(), "aot_eager")
    print("convolutional")
    _same_loss(*feed_forward(), "inductor")
    print("feed-forward")


if __name__ == "__main__":
    main()
