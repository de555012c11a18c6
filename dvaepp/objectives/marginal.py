"""KL terms of the marginal ELBO with a directed prior (Eq. 5), from one sample ζ.

    Σ_a E_{ζ_<a} [KL(q(ζ_a|x, ζ_<a) || p(ζ_a|ζ_<a))] = E_ζ [Σ_a log q(ζ_a|x, ζ_<a) - log p(ζ_a|ζ_<a)]

z is summed out on both sides, q(ζ|x) = Σ_z q(z|x) r(ζ|z) and p(ζ) = Σ_z p(z) r(ζ|z) unit by unit, and nothing is left
in closed form: the bracket at one reparameterised sample is the estimate. A single estimate may be negative. Its
gradient is right only through ζ: with ζ held fixed the number stays and the gradient loses all but the score, whose
mean is zero, and p's share. The KL is at most that of Eq. 4 (App. D), because merging z cannot tell q and p better
apart.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from dvaepp.objectives.groups import check_prior_logits, check_samples
from dvaepp.smoothing.base import Overlapping


def marginal(
    logits: Sequence[Tensor], prior_logits: Sequence[Tensor], zeta: Sequence[Tensor], smoothing: Overlapping
) -> Tensor:
    """log q(ζ|x) - log p(ζ) at one sample ζ, shape (batch,): its mean over ζ is the KL of Eq. 5.

    `logits[a]` (batch, units of group a) are those of q(z_a|x, ζ_<a), `zeta[a]` the sample drawn with them, not
    detached; `prior_logits[a]` broadcast against them. Log-likelihood minus this is the log weight that
    `importance_weighted` takes.
    """
    return marginal_per_group(logits, prior_logits, zeta, smoothing).sum(0)


def marginal_per_group(
    logits: Sequence[Tensor], prior_logits: Sequence[Tensor], zeta: Sequence[Tensor], smoothing: Overlapping
) -> Tensor:
    """The terms of `marginal`, shape (groups, batch)."""
    check_prior_logits(logits, prior_logits)
    check_samples(logits, zeta)
    groups = zip(logits, prior_logits, zeta, strict=True)
    return torch.stack([(smoothing.log_prob(s, q) - smoothing.log_prob(s, p)).sum(-1) for q, p, s in groups])
