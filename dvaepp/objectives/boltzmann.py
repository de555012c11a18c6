"""KL between a grouped posterior with overlapping smoothing and a Boltzmann prior (Eq. 6 and the display after it).

    KL = log Z - H(q(z₁|x)) - E[H(q(z₂|x, ζ₁))] - ... + E_q[E(z)]

Everything but log Z is analytic given the samples ζ, and autograd differentiates all of it: no gradient by hand.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from dvaepp.numerics import bernoulli_entropy
from dvaepp.priors.base import BoltzmannPrior
from dvaepp.smoothing.base import Overlapping


def boltzmann_kl(
    prior: BoltzmannPrior,
    logits: Sequence[Tensor],
    zeta: Sequence[Tensor],
    smoothing: Overlapping,
    log_z: Tensor | float,
) -> Tensor:
    """KL(q(z, ζ|x) || p(z, ζ)) given one sample ζ, shape (batch,): its mean over ζ is the KL.

    `logits[a]` (batch, units of group a) are those of q(z_a | x, ζ_<a), and `zeta[a]` the sample drawn with them.
    `log_z`: for training `prior.log_z_surrogate(chains)`, whose gradient is right and whose number is not; for a number
    an estimate of log Z. The last group's ζ does not enter: its ν is averaged out.
    """
    if not logits or [g.shape for g in logits] != [s.shape for s in zeta]:
        shapes = [[tuple(t.shape) for t in tensors] for tensors in (logits, zeta)]
        raise ValueError(f"logits and zeta must have one equal shape per group, got {shapes[0]} and {shapes[1]}")
    mu = [torch.sigmoid(group) for group in logits]
    nu = [torch.sigmoid(g + smoothing.log_ratio(s)) for g, s in zip(logits[:-1], zeta[:-1], strict=True)]
    entropy = torch.stack([bernoulli_entropy(group).sum(-1) for group in logits]).sum(0)
    energy = prior.cross_entropy(torch.cat(mu, -1), torch.cat([*nu, mu[-1]], -1), [g.shape[-1] for g in logits])
    return log_z - entropy + energy
