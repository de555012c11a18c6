"""A model small enough to enumerate, and the exact gradient of its bounds; nothing here imports dvaepp.

    q(z_a|x, z_<a): logits tanh(x A_a + z_<a B_a) C_a + c_a,   p(z_a|z_<a) alike without x,   p(x|z): tanh(z D) E + e

A batch repeats one x, so that its rows are independent draws for one gradient.
"""

import itertools
import math
from collections.abc import Sequence
from functools import cache
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import logsigmoid

SIZES = [(4,), (3, 3)]
FEATURES = 5
STANDARD_ERRORS = 5  # failure rate about 8e-6 per component (t, 49 degrees); seeds are fixed, so a test never flickers
HIDDEN = 4


class Toy(nn.Module):
    """One batch of `batch` copies of x; `offsets`, one per layer and row, are zeros that a test may differentiate."""

    def __init__(self, sizes: Sequence[int], batch: int, dtype: torch.dtype = torch.float64, gain: float = 1.0) -> None:
        super().__init__()
        self.sizes, self.gain = list(sizes), gain
        generator = torch.Generator().manual_seed(11)

        def weights(*shape: int, scale: float = 1.3) -> nn.Parameter:
            return nn.Parameter((scale * torch.randn(shape, generator=generator, dtype=torch.float64)).to(dtype))

        before = [sum(sizes[:a]) for a in range(len(sizes))]
        self.enter = nn.ParameterList(weights(FEATURES + n, HIDDEN) for n in before)
        self.leave = nn.ParameterList(weights(HIDDEN, n) for n in sizes)
        self.first = weights(sizes[0])
        self.prior_enter = nn.ParameterList(weights(n, HIDDEN) for n in before[1:])
        self.prior_leave = nn.ParameterList(weights(HIDDEN, n) for n in sizes[1:])
        self.decode = weights(sum(sizes), HIDDEN, scale=2.0)
        self.pixels = weights(HIDDEN, FEATURES, scale=2.0)
        self.x = (torch.arange(FEATURES) % 2).to(dtype)
        self.context = (self.x - 0.4).expand(batch, -1)
        self.offsets = [torch.zeros(batch, n, dtype=dtype) for n in sizes]

    @property
    def num_layers(self) -> int:
        return len(self.sizes)

    def logits(self, z: Sequence[Tensor]) -> Tensor:
        a = len(z)
        lead = z[0].shape[:-2] if z else ()
        seen = torch.cat([self.context.expand(*lead, *self.context.shape), *z], -1)
        return self.gain * (torch.tanh(seen @ self.enter[a]) @ self.leave[a]) + self.offsets[a]

    def prior_logits(self, z: Sequence[Tensor]) -> list[Tensor]:
        later = zip(self.prior_enter, self.prior_leave, strict=True)
        return [self.first, *(torch.tanh(torch.cat(list(z[: a + 1]), -1) @ w) @ v for a, (w, v) in enumerate(later))]

    def log_likelihood(self, z: Sequence[Tensor]) -> Tensor:
        pixels = torch.tanh((2 * torch.cat(list(z), -1) - 1) @ self.decode) @ self.pixels
        return logsigmoid((2 * self.x - 1) * pixels).sum(-1)

    def log_joint(self, z: Sequence[Tensor]) -> Tensor:
        prior = [value * p + logsigmoid(-p) for value, p in zip(z, self.prior_logits(z), strict=True)]
        return self.log_likelihood(z) + torch.cat(prior, -1).sum(-1)


class Gradient(NamedTuple):
    """A bound and its gradient with respect to all parameters, in one vector."""

    bound: float
    gradient: Tensor


def flat(gradients: Sequence[Tensor | None], parameters: Sequence[Tensor]) -> Tensor:
    pairs = zip(gradients, parameters, strict=True)
    return torch.cat([(torch.zeros_like(p) if g is None else g).reshape(-1) for g, p in pairs])


def log_q_and_log_p(model: Toy) -> tuple[Tensor, Tensor]:
    """log q(z|x) and log p(x, z) of every state, from a model whose batch has one row per state."""
    states = torch.tensor(list(itertools.product([0.0, 1.0], repeat=sum(model.sizes))), dtype=torch.float64)
    z = list(states.split(model.sizes, -1))
    log_q = torch.zeros(len(states), dtype=torch.float64)
    for a, value in enumerate(z):
        mu = torch.sigmoid(model.logits(z[:a]))
        log_q = log_q + torch.log(torch.where(value == 1, mu, 1 - mu)).sum(-1)
    return log_q, model.log_joint(z)


@cache
def truth(sizes: tuple[int, ...], num_samples: int = 1) -> Gradient:
    """Σ over all states, or all pairs of them, of q times the log of the mean weight, differentiated as it stands."""
    model = Toy(sizes, 2 ** sum(sizes))
    log_q, log_p = log_q_and_log_p(model)
    assert abs(log_q.exp().sum().item() - 1) < 1e-12
    weight = log_p - log_q
    if num_samples == 1:
        bound = (log_q.exp() * weight).sum()
    else:
        assert num_samples == 2
        pair = torch.logaddexp(weight[:, None], weight) - math.log(2)
        bound = (log_q.exp()[:, None] * log_q.exp() * pair).sum()
    parameters = list(model.parameters())
    return Gradient(bound.item(), flat(torch.autograd.grad(bound, parameters, allow_unused=True), parameters))
