"""Drawing z layer by layer, and branching off the draw: what several estimators share.

A branch a leaves the draw at layer a: layers before it keep the drawn z, layer a takes another value (`split`), and
later layers follow from it with the noise of the draw (`follow`). That noise is independent of the noise of layer a, so
that a branch is a fair control variate or antithetic partner for layer a, and close to the draw it is compared with.
All branches are evaluated together, stacked along a leading axis; for a single layer there is one.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import softplus

from dvaepp.estimators.base import Target
from dvaepp.numerics import uniform


class Layer(NamedTuple):
    """One layer of a draw. Only `logits`, and `z` where a slope was attached, carry a gradient."""

    logits: Tensor
    mu: Tensor
    rho: Tensor
    z: Tensor
    log_normalizer: Tensor
    """log(1 + e^l) summed over units: log q(z) = z · l - log_normalizer."""

    @property
    def score(self) -> Tensor:
        """∂ log q(z)/∂l = z - μ."""
        return self.z.detach() - self.mu

    @property
    def log_q(self) -> Tensor:
        """log q(z|x, z_<a), detached."""
        return (self.z.detach() * self.logits.detach()).sum(-1) - self.log_normalizer


Attach = Callable[[Tensor, Tensor, Tensor], Tensor]
Relax = Callable[[int, Tensor, Tensor], Tensor]


def log_normalizer(logits: Tensor) -> Tensor:
    """Σ log(1 + e^l); with torch's default threshold of 20 it would be wrong by 2e-9 in float64."""
    return softplus(logits, threshold=40.0).sum(-1)


def draw(
    target: Target, generator: torch.Generator | None, *, num_samples: int | None = None, attach: Attach | None = None
) -> list[Layer]:
    """z ~ q(z|x), layer after layer; `num_samples` adds a leading axis.

    A unit is on for large ρ, z = 1[ρ > 1-μ], as in the smoothings. The comparison is made with 1-ρ, which is exact,
    and not with 1-μ, which is rounded. `attach(logits, z, ρ)` may return z with a gradient, which then passes through
    later layers, too.
    """
    layers: list[Layer] = []
    for _ in range(target.num_layers):
        logits = target.logits([layer.z for layer in layers])
        with torch.no_grad():
            mu = torch.sigmoid(logits)
            shape = logits.shape if num_samples is None or layers else (num_samples, *logits.shape)
            rho = uniform(*shape, generator=generator, dtype=logits.dtype, device=logits.device)
            z = (1 - rho < mu).to(logits.dtype)
            normalizer = log_normalizer(logits)
        if attach is not None:
            z = attach(logits, z, rho)
        layers.append(Layer(logits, mu, rho, z, normalizer))
    return layers


def log_q_from(layers: Sequence[Layer]) -> list[Tensor]:
    """Σ_{b>=a} log q(z_b|x, z_<b) for every a."""
    tails = [layers[-1].log_q]
    for layer in reversed(layers[:-1]):
        tails.insert(0, layer.log_q + tails[0])
    return tails


def branch(target: Target, layers: Sequence[Layer], split: Sequence[Tensor], follow: Relax) -> Tensor:
    """f_a on branch a, as row a of (layers, batch), after a walk through every branch to its end.

    Branch a gives layer a the value `split[a]` (batch, units), and a later layer b the value `follow(b, logits, ρ)`.
    log q of layer a takes the logits of the draw as constants, so that f_a is a function of z_a alone there.
    """
    z, log_q = _walk(target, layers, split, follow)
    return target.log_joint(z) - log_q


def antithetic_pairs(target: Target, layers: Sequence[Layer]) -> tuple[Tensor, list[Tensor], Tensor]:
    """f_a(z) - f_a(z̃) of every layer, the partners z̃_a = 1[ρ < μ] from mirrored noise, and log p(x, z) of all rows.

    Row 0 is the draw, and row a + 1 is branch a. Each branch is a sample of q, as the draw is.
    """
    split = [(layer.rho < layer.mu).to(layer.z.dtype) for layer in layers]
    with torch.no_grad():
        z, log_q = _walk(target, layers, split, lambda _, logits, rho: (1 - rho < torch.sigmoid(logits)).to(rho.dtype))
    rows = [torch.cat([layer.z[None], branches]) for layer, branches in zip(layers, z, strict=True)]
    log_joint = target.log_joint(rows)
    with torch.no_grad():
        signal = log_joint[0] - torch.stack(log_q_from(layers))
        return signal - (log_joint[1:] - log_q), split, log_joint


def _walk(
    target: Target, layers: Sequence[Layer], split: Sequence[Tensor], follow: Relax
) -> tuple[list[Tensor], Tensor]:
    """z of every layer on all branches, (layers, batch, units) each, and log q from the splitting layer on."""
    z: list[Tensor] = []
    log_q: list[Tensor] = []  # of each layer (branches, batch), zero for branches that split later
    for a, (layer, own) in enumerate(zip(layers, split, strict=True)):
        rows, terms = [own[None]], [(own * layer.logits.detach()).sum(-1)[None] - layer.log_normalizer]
        if a:
            logits = target.logits([earlier[:a] for earlier in z])
            followed = follow(a, logits, layer.rho)
            rows.insert(0, followed)
            terms.insert(0, (followed * logits).sum(-1) - log_normalizer(logits))
        if later := len(layers) - 1 - a:
            rows.append(layer.z.detach().expand(later, *layer.z.shape))
            terms.append(layer.log_normalizer.new_zeros(later, *layer.log_normalizer.shape))
        z.append(torch.cat(rows) if len(rows) > 1 else rows[0])
        log_q.append(torch.cat(terms) if len(terms) > 1 else terms[0])
    return z, torch.stack(log_q).sum(0) if len(log_q) > 1 else log_q[0]


def surrogate(log_joint: Tensor, layers: Sequence[Layer], gradients: Sequence[Tensor]) -> Tensor:
    """log p(x, z) + Σ_a stop[g_a] · l_a; a sample axis of g is summed over."""
    total = log_joint
    for layer, gradient in zip(layers, gradients, strict=True):
        product = (gradient.detach() * layer.logits).sum(-1)
        total = total + (product.sum(0) if product.dim() > total.dim() else product)
    return total
