"""KL between a grouped posterior with Rolfe's spike-and-exponential smoothing and a Boltzmann prior (Sec. 2, Sec. 5).

    KL = log Z - H(q(z₁|x)) - E[H(q(z₂|x, ζ₁))] - ... + E_q[E(z)]

as in Eq. 6, but the two densities do not overlap: ν = q(z=1|x, ζ) is the step z = 1[ζ > 0], whose derivative is zero
or nowhere, and autograd would lose a term. With the noise ρ held fixed, z_i = 1[ρ_i > 1-μ_i] while ζ_i is a continuous
function of μ_i, which leaves zero at the very point where z_i jumps. So

    entropy, linear and same-group terms   hold μ alone, which is continuous in every earlier ζ: autograd is right;
    a coupling to a later group            E[z_i W_ij μ_j], where μ_j reacts to ζ_i, has the derivative
                                           E[z_i W_ij ∂μ_j] + ∂μ_i W_ij E[μ_j | ζ_i = 0]   (Leibniz, at ρ_i = 1-μ_i).

The last mean is over the draws with z_i = 0, those with ζ_i = 0: E[μ_j | ζ_i = 0] = E[μ_j (1-z_i)] / (1-μ_i). With
∂μ_i = μ_i (1-μ_i) ∂l_i the denominator cancels: everything is the KL of Sec. 5 with

    ν_i = z_i in value,   ∂ν_i / ∂l_i = (1-z_i) μ_i,

an unbiased estimate of ∂μ_i / ∂l_i that sits where the step does. The usual form divides by 1-μ_i and clips μ at 0.999,
which is biased above; here nothing is divided, so μ is not clipped. It also takes z where we take μ (linear terms,
couplings inside a group, later ends that are not last): the mean is the same. The noise is mostly less with μ, not
always: a linear term in z may cancel noise of its couplings.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from dvaepp.numerics import full_precision
from dvaepp.objectives.boltzmann import kl_given_nu
from dvaepp.objectives.groups import check_samples
from dvaepp.priors.base import BoltzmannPrior
from dvaepp.smoothing.base import attach


@full_precision
def rolfe_kl(prior: BoltzmannPrior, logits: Sequence[Tensor], zeta: Sequence[Tensor], log_z: Tensor | float) -> Tensor:
    """KL(q(z, ζ|x) || p(z, ζ)) given one sample ζ of spike-and-exponential, shape (batch,): its mean is the KL.

    `logits[a]` (batch, units of group a) are those of q(z_a | x, ζ_<a), `zeta[a]` the sample drawn with them, and later
    logits depend on it with its gradient; `zeta` itself is read for z = 1[ζ > 0] only. `log_z` as for `boltzmann_kl`.
    Value and gradients, to the posterior and to the prior, are unbiased. The last group's ζ does not enter.

    Choose it only to compare with Rolfe (2016), whose units have a spike.

    >>> logits, zeta = torch.zeros(5, 4), SpikeExponential(5.0).sample(torch.zeros(5, 4), torch.rand(5, 4))
    >>> rolfe_kl(RBM(2, 2), [logits], [zeta], log_z=0.0).shape
    torch.Size([5])
    """
    check_samples(logits, zeta)
    nu = [_step(group, s) for group, s in zip(logits[:-1], zeta[:-1], strict=True)]
    return kl_given_nu(prior, logits, nu, log_z)


def _step(logits: Tensor, zeta: Tensor) -> Tensor:
    """z = 1[ζ > 0] with the slope (1-z) μ in the logits."""
    z = (zeta > 0).to(logits.dtype)
    bounded = logits.clamp(-88, 88)  # beyond, μ (1-μ) is 0 in float32, and ∞ - ∞ would be NaN
    return attach(bounded, z, (1 - z) * torch.sigmoid(bounded.detach()))
