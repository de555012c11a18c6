"""A relaxed Boltzmann prior without a bound: couplings as the covariance of normal noise (Gaussian integral).

Let M = W + β I be positive definite, and smooth all units of the prior together by ζ|z ~ N(z, M⁻¹). Then z'Wz/2 of the
energy cancels against the square of the density, what is left is linear in z, and the sum over z factorises:

    log p(ζ) = ½ log|M / 2π| - ½ ζ'Mζ + Σ_i softplus((Mζ)_i + a_i - β/2) - log Z,   exactly.

The posterior draws its units independently, from a mixture of normals q(ζ_i|x) = Σ_z q(z|x) N(ζ_i | z, s²), and cannot
follow M⁻¹. We take s² = 1/β. That is the variance of ζ_i under the prior given z and all the other ζ, and without
couplings the two smoothings are the same one; any other s² would then cost (β s² - 1 - log β s²) / 2 nats per unit.
So β is no parameter of its own: it is 1/s² of the smoothing `Gaussian(s)`. With b_i = β (ζ_i - ½) the terms that both
densities share drop out:

    log q(ζ|x) - log p(ζ) = Σ_i [softplus(l_i + b_i) - softplus(l_i) - softplus(b_i + (Wζ)_i + a_i)]
                            + ½ ζ'Wζ - ½ log|I + W/β| + log Z.
"""

import math
from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn.functional import softplus

from dvaepp.errors import UsageError
from dvaepp.numerics import full_precision
from dvaepp.objectives.groups import check_samples
from dvaepp.priors.base import BoltzmannPrior
from dvaepp.smoothing.gaussian import Gaussian


@full_precision
def gaussian_integral_log_prior(
    prior: BoltzmannPrior, zeta: Tensor, smoothing: Gaussian, log_z: Tensor | float
) -> Tensor:
    """log p(ζ) for ζ|z ~ N(z, (W + I/s²)⁻¹) with s the `scale` of `smoothing`, shape (batch,); exact.

    `zeta` is (batch, units); `log_z` is that of the binary prior, as for `boltzmann_kl`.

    Choose it in place of `relaxed_log_prior` where couplings are weak against 1/s²: nothing is iterated or bounded.

    >>> gaussian_integral_log_prior(RBM(2, 2), torch.rand(5, 4), Gaussian(0.2), log_partition(RBM(2, 2)).value).shape
    torch.Size([5])
    """
    beta = _beta(smoothing)
    quadratic = beta * (zeta * zeta).sum(-1) + prior.num_units * math.log(2 * math.pi / beta)
    return _excess(prior, zeta, beta) - 0.5 * quadratic - log_z


@full_precision
def gaussian_integral_kl(
    prior: BoltzmannPrior,
    logits: Sequence[Tensor],
    zeta: Sequence[Tensor],
    smoothing: Gaussian,
    log_z: Tensor | float,
    *,
    path_only: bool = True,
) -> Tensor:
    """log q(ζ|x) - log p(ζ) at one sample, shape (batch,); arguments as for `relaxed_kl`.

    Choose it to train with that prior.

    >>> logits, zeta = torch.zeros(5, 4), Gaussian(0.2).sample(torch.zeros(5, 4), torch.rand(5, 4))
    >>> gaussian_integral_kl(RBM(2, 2), [logits], [zeta], Gaussian(0.2), log_z=0.0).shape
    torch.Size([5])
    """
    check_samples(logits, zeta)
    beta, q = _beta(smoothing), torch.cat(list(logits), -1)
    q, joined = q.detach() if path_only else q, torch.cat(list(zeta), -1)
    own = (softplus(q + beta * (joined - 0.5)) - softplus(q)).sum(-1)
    return own - _excess(prior, joined, beta) + log_z


def _excess(prior: BoltzmannPrior, zeta: Tensor, beta: float) -> Tensor:
    """log p(ζ) + log Z without the normal density N(ζ | 0, 1/β), which p and q share."""
    bias, matrix = prior.couplings()
    pull = zeta @ matrix
    per_unit = softplus(beta * (zeta - 0.5) + pull + bias) - 0.5 * zeta * pull
    return per_unit.sum(-1) + 0.5 * _log_det(matrix / beta, beta)


def _log_det(scaled: Tensor, beta: float) -> Tensor:
    """log|I + W/β|, or a refusal with the β that would do."""
    identity = torch.eye(len(scaled), dtype=scaled.dtype, device=scaled.device)
    factor, failed = torch.linalg.cholesky_ex(identity + scaled)
    if not failed.is_meta and bool(failed):
        least = -beta * torch.linalg.eigvalsh(scaled.detach().double())[0].item()
        raise UsageError(
            f"W + beta I must be positive definite, and beta = {beta:g} is too small for these couplings: "
            f"it must be above {least:.6g}, which is a scale of the Gaussian smoothing below {least**-0.5:.6g}"
        )
    return 2 * factor.diagonal().log().sum()


def _beta(smoothing: Gaussian) -> float:
    if isinstance(smoothing.scale, Tensor):
        raise UsageError("the Gaussian-integral prior needs one number as the scale of its smoothing, got a tensor")
    return smoothing.scale**-2
