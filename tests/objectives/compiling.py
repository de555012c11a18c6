"""torch.compile(fullgraph=True) on smoothings with a closed inverse, on the bound of Sec. 5 and on rsample.

Run as a program by test_transforms.py; it prints what holds. Smoothings without a closed inverse iterate until all
elements are solved, which is no graph.
"""

from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor

from dvaepp.distributions import SmoothedBernoulli
from dvaepp.smoothing import Exponential, Logistic
from tests.objectives.test_transforms import SMOOTHING, _case, _kl


def _same(function: Callable[[Tensor, Tensor], Tensor], logits: Tensor, other: Tensor) -> None:
    """Values and gradients, compiled and not."""
    leaves = [logits.clone().requires_grad_() for _ in range(2)]
    compiled = torch.compile(function, fullgraph=True, backend="aot_eager")
    values = [function(leaves[0], other), compiled(leaves[1], other)]
    torch.testing.assert_close(values[1], values[0])
    gradients = [torch.autograd.grad(value.sum(), leaf)[0] for value, leaf in zip(values, leaves, strict=True)]
    torch.testing.assert_close(gradients[1], gradients[0])


def main() -> None:
    rbm, logits, rho = _case()
    members = [Exponential(0.4), Exponential(8.0), Exponential(60.0), Logistic(0.1), Logistic(0.02)]
    for member in members:
        _same(replace(member, validate_args=False).sample, logits, rho)
    print("samples")
    for member in (SMOOTHING, Logistic(0.1, validate_args=False)):
        _same(lambda x, zeta, member=member: member.log_prob(zeta, x), logits, rho)
    print("densities")
    _same(lambda x, noise: _kl(rbm, x, noise), logits, rho)
    print("bound")
    drawn = torch.compile(
        lambda x: SmoothedBernoulli(logits=x, smoothing=SMOOTHING, validate_args=False).rsample(),
        fullgraph=True,
        backend="aot_eager",
    )(logits)
    assert drawn.shape == logits.shape and ((drawn >= 0) & (drawn <= 1)).all() and len(drawn.unique()) > 20
    print("distribution")


if __name__ == "__main__":
    main()
