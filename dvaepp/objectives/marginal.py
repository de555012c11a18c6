"""KL terms of the marginal ELBO with a directed prior (Eq. 5), from one sample ζ.

    Σ_a E_{ζ_<a} [KL(q(ζ_a|x, ζ_<a) || p(ζ_a|ζ_<a))] = E_ζ [Σ_a log q(ζ_a|x, ζ_<a) - log p(ζ_a|ζ_<a)]

z is summed out on both sides, q(ζ|x) = Σ_z q(z|x) r(ζ|z) and p(ζ) = Σ_z p(z) r(ζ|z) unit by unit, and nothing is left
in closed form: the bracket at one reparameterised sample is the estimate. A single estimate may be negative. The KL is
at most that of Eq. 4 (App. D), because merging z cannot tell q and p better apart.

Its gradient has two parts: through ζ, and through the logits in log q at fixed ζ. The second, the score, is zero in the
mean whatever came before (ζ_<a is settled when ζ_a is drawn), so it only adds noise; the first alone is the path
derivative of Roeder et al. (2017). With ζ held fixed instead, the number stays and q learns nothing.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from dvaepp.numerics import full_precision
from dvaepp.objectives.groups import check_prior_logits, check_samples
from dvaepp.smoothing.base import Overlapping, first_order
from dvaepp.smoothing.groups import for_groups


def marginal(
    logits: Sequence[Tensor],
    prior_logits: Sequence[Tensor],
    zeta: Sequence[Tensor],
    smoothing: Overlapping | Sequence[Overlapping],
    *,
    path_only: bool = False,
) -> Tensor:
    """log q(ζ|x) - log p(ζ) at one sample ζ, shape (batch,): its mean over ζ is the KL of Eq. 5.

    `logits[a]` (batch, units of group a) are those of q(z_a|x, ζ_<a), `zeta[a]` the sample drawn with them, not
    detached; `prior_logits[a]` broadcast against them; `smoothing` is one for all groups or one for each. `path_only`
    leaves the score out of the gradient: right and less noisy where the KL enters the loss linearly. Log-likelihood
    minus this is the log weight that `importance_weighted` takes; the logarithm of a mean is not linear and needs the
    score.

    Choose it for a directed prior and overlapping units: z is summed out of both sides (App. D).

    >>> smoothing, logits = Exponential(8.0), torch.zeros(5, 4)
    >>> zeta = smoothing.sample(logits, torch.rand(5, 4))
    >>> marginal([logits], [torch.zeros(4)], [zeta], smoothing).shape
    torch.Size([5])
    """
    return marginal_per_group(logits, prior_logits, zeta, smoothing, path_only=path_only).sum(0)


@full_precision
def marginal_per_group(
    logits: Sequence[Tensor],
    prior_logits: Sequence[Tensor],
    zeta: Sequence[Tensor],
    smoothing: Overlapping | Sequence[Overlapping],
    *,
    path_only: bool = False,
) -> Tensor:
    """The terms of `marginal`, shape (groups, batch).

    Choose it where `kl_balance` weighs groups, or to see which of them is used.

    >>> smoothing, logits = Exponential(8.0), torch.zeros(5, 4)
    >>> zeta = smoothing.sample(logits, torch.rand(5, 4))
    >>> marginal_per_group([logits], [torch.zeros(4)], [zeta], smoothing).shape
    torch.Size([1, 5])
    """
    check_prior_logits(logits, prior_logits)
    check_samples(logits, zeta)
    groups = zip(logits, prior_logits, zeta, for_groups(smoothing, len(logits)), strict=True)
    return torch.stack([bracket(q, p, s, each, path_only).sum(-1) for q, p, s, each in groups])


@full_precision
def bracket(q: Tensor, p: Tensor, zeta: Tensor, smoothing: Overlapping, path_only: bool) -> Tensor:
    """log q(ζ) - log p(ζ) unit by unit, what Eq. 5 averages."""
    if path_only:
        return first_order(smoothing.log_prob(zeta, q.detach()) - smoothing.log_prob(zeta, p))
    return smoothing.log_prob(zeta, q) - smoothing.log_prob(zeta, p)
