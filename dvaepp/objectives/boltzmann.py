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
    """One-sample estimate of KL(q(z, ζ|x) || p(z, ζ)), shape (batch,); unbiased for its mean over ζ.

    `logits[a]` (batch, units of group a) are those of q(z_a | x, ζ_<a), and `zeta[a]` the sample drawn with them.
    `log_z`: for training `prior.log_z_surrogate(chains)`, whose gradient is right and whose number is not; for a number
    an estimate of log Z. The last group's ζ does not enter (its ν is averaged out), nor does any with one group.
    """
    mu = torch.cat([torch.sigmoid(group) for group in logits], -1)
    nu = torch.cat([torch.sigmoid(g + smoothing.log_ratio(s)) for g, s in zip(logits, zeta, strict=True)], -1)
    entropy = sum((bernoulli_entropy(group).sum(-1) for group in logits), start=mu.new_zeros(()))
    return log_z - entropy + prior.cross_entropy(mu, nu, [group.shape[-1] for group in logits])
