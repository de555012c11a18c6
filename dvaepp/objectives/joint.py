"""KL terms of the joint ELBO with a directed prior (Eq. 4): closed forms between Bernoulli variables.

    Σ_a E_{ζ_<a} [KL(q(z_a|x, ζ_<a) || p(z_a|ζ_<a))],   a = 1 ... groups

Both sides are factorial, so a group's KL is a sum over its units, with μ = sigmoid(l) of q and logits m of p

    KL(l || m) = μ (log σ(l) - log σ(m)) + (1-μ) (log σ(-l) - log σ(-m)).

The differences come first: each vanishes exactly where l = m, and at |l| = 100 no 1-μ is rounded to a zero inside a
logarithm. ζ enters through the logits alone, and autograd follows it there. The bound is looser than the marginal
one (`objectives.marginal`), by App. D.
"""

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid

from dvaepp.numerics import full_precision
from dvaepp.objectives.groups import check_prior_logits


def joint(logits: Sequence[Tensor], prior_logits: Sequence[Tensor]) -> Tensor:
    """Σ_a KL(q(z_a|x, ζ_<a) || p(z_a|ζ_<a)) for the ζ behind the logits, shape (batch,) (Eq. 4).

    `logits[a]` (batch, units of group a) are those of q, `prior_logits[a]` those of p, which broadcast against them:
    the first group's may be a parameter (units,). Posterior logits may be infinite, prior logits are finite.

    Choose it for a directed prior where p and q are compared as binary units; `marginal` is tighter.

    >>> joint([torch.zeros(5, 4)], [torch.zeros(4)])
    tensor([0., 0., 0., 0., 0.])
    """
    return joint_per_group(logits, prior_logits).sum(0)


@full_precision
def joint_per_group(logits: Sequence[Tensor], prior_logits: Sequence[Tensor]) -> Tensor:
    """The terms of `joint`, shape (groups, batch).

    Choose it where `kl_balance` weighs groups, or to see which of them is used.

    >>> joint_per_group([torch.zeros(5, 4), torch.zeros(5, 2)], [torch.zeros(4), torch.zeros(2)]).shape
    torch.Size([2, 5])
    """
    check_prior_logits(logits, prior_logits)
    return torch.stack([_bernoulli_kl(q, p).sum(-1) for q, p in zip(logits, prior_logits, strict=True)])


def _bernoulli_kl(logits: Tensor, prior_logits: Tensor) -> Tensor:
    logits = logits.clamp(-1e3, 1e3)  # beyond, q is certain in any type, and 0 · ∞ would be NaN
    one = torch.sigmoid(logits) * (logsigmoid(logits) - logsigmoid(prior_logits))
    return one + torch.sigmoid(-logits) * (logsigmoid(-logits) - logsigmoid(-prior_logits))
