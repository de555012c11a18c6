"""KL between a grouped posterior with overlapping smoothing and a Boltzmann prior (Eq. 6 and the display after it).

    KL = log Z - H(q(z₁|x)) - E[H(q(z₂|x, ζ₁))] - ... + E_q[E(z)]

Everything but log Z is analytic given the samples ζ, and autograd differentiates all of it: no gradient by hand.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from dvaepp.numerics import bernoulli_entropy, full_precision
from dvaepp.objectives.groups import check_samples
from dvaepp.priors.base import BoltzmannPrior
from dvaepp.smoothing.base import Overlapping
from dvaepp.smoothing.groups import for_groups


@full_precision
def boltzmann_kl(
    prior: BoltzmannPrior,
    logits: Sequence[Tensor],
    zeta: Sequence[Tensor],
    smoothing: Overlapping | Sequence[Overlapping],
    log_z: Tensor | float,
) -> Tensor:
    """KL(q(z, ζ|x) || p(z, ζ)) given one sample ζ, shape (batch,): its mean over ζ is the KL.

    `logits[a]` (batch, units of group a) are those of q(z_a | x, ζ_<a), and `zeta[a]` the sample drawn with them
    by `smoothing`, one for all groups or one for each.
    `log_z`: for training `prior.log_z_surrogate(chains)`, whose gradient is right and whose number is not; for a number
    an estimate of log Z. The last group's ζ does not enter: its ν is averaged out.

    Choose it to train with a Boltzmann prior and overlapping units: the paper's bound, with the least noise.

    >>> smoothing, logits = Exponential(8.0), torch.zeros(5, 4)
    >>> zeta = smoothing.sample(logits, torch.rand(5, 4))
    >>> boltzmann_kl(RBM(2, 2), [logits], [zeta], smoothing, log_z=log_partition(RBM(2, 2)).value).shape
    torch.Size([5])
    """
    check_samples(logits, zeta)
    groups = list(zip(logits, zeta, for_groups(smoothing, len(logits)), strict=True))
    nu = [torch.sigmoid(g + each.log_ratio(s)) for g, s, each in groups[:-1]]
    return kl_given_nu(prior, logits, nu, log_z)


def kl_given_nu(prior: BoltzmannPrior, logits: Sequence[Tensor], nu: Sequence[Tensor], log_z: Tensor | float) -> Tensor:
    """The KL from ν of every group but the last, whose ν is averaged out; shared with Rolfe's smoothing."""
    sizes = [group.shape[-1] for group in logits]
    joined = torch.cat(list(logits), -1)
    mu = torch.sigmoid(joined)
    known = torch.cat([*nu, mu[..., -sizes[-1] :]], -1)
    return log_z - bernoulli_entropy(joined).sum(-1) + prior.cross_entropy(mu, known, sizes)
