"""The importance-weighted bound with K samples: log (1/K) Σ_k w_k (Burda et al. 2016).

    w_k = p(x|ζ_k) p(ζ_k) / q(ζ_k|x),   E[log mean w] <= log p(x), non-decreasing in K; K = 1 is the ELBO (Eq. 5)

A log weight is log p(x|ζ) - `marginal(...)` with a directed prior, log p(x|ζ) - `relaxed_kl(...)` with a Boltzmann
prior. The analytic KLs (`joint`, `boltzmann_kl`, `rolfe_kl`) are averages over z and no part of a weight: exponentiated
they give no bound. log Z is common to all weights, and cancels in the normalised ones.

Both kinds of term keep their score here (`path_only=False`): the gradient is the ordinary one, Σ_k ∂ log w_k w_k/Σw.
The doubly reparameterised gradient (Tucker et al. 2019) has less noise where K is large, but is stated for posteriors
whose groups do not depend on each other's samples, and ours do.
"""

import math

import torch
from torch import Tensor


def importance_weighted(log_weights: Tensor) -> Tensor:
    """log mean exp of log weights (samples, batch) over the samples, shape (batch,).

    Shifted by the maximum, so that weights of e^-1000 neither vanish nor overflow. The shift is taken off beforehand:
    at log w = -10 000 the gradient of torch.logsumexp alone is off by 2e-4 in float32.

    Choose it to train on, or to report, the K-sample bound of any log weights.

    >>> importance_weighted(torch.zeros(10, 3))
    tensor([0., 0., 0.])
    """
    if log_weights.dim() != 2 or log_weights.shape[0] < 1:
        raise ValueError(f"log_weights must have shape (samples >= 1, batch), got {tuple(log_weights.shape)}")
    top = log_weights.detach().amax(0)
    top = torch.where(top.isfinite(), top, 0.0)  # no weight at all is a bound of -∞, not NaN
    return torch.logsumexp(log_weights - top, 0) - math.log(log_weights.shape[0]) + top
