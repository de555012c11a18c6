"""A Boltzmann prior whose units are smoothed like those of the posterior: log p(ζ), and log q(ζ|x) - log p(ζ).

Sec. 5 smooths the posterior alone, and averages over the binary units of the prior. When the prior is smoothed too,

    p(ζ) = Σ_z p(z) Π_i r(ζ_i|z_i),   p(z) = e^(-E(z)) / Z,

the model is an ordinary one in ζ, and log p(x|ζ) + log p(ζ) - log q(ζ|x) is the logarithm of an importance weight:
this is the only bound here with a Boltzmann prior that may stand inside the logarithm of a mean over K samples
(`importance_weighted`). The paper does not have it; its authors took it as their next step.

With c_i = log r(ζ_i|0) and b_i = log r(ζ_i|1) - log r(ζ_i|0),

    log p(ζ) = log Σ_z e^(b·z - E(z)) + Σ c - log Z.

The sum is the partition function of a machine with the biases a + b. For independent units with any means m it is at
least e^(b·m - E(m) + H(m)) (mean field). The best m solves m_i = sigmoid(a_i + b_i + Σ_j W_ij m_j), which a few sweeps
over the blocks of independent units find; each update raises the bound. There the derivative in m is zero, so that the
gradient with m held constant is the gradient of the whole bound (envelope theorem), and no autograd goes through the
sweeps. With too few of them it is still a bound, and its gradient is the partial one.

At the ζ of a sharp smoothing every unit has made up its mind (|b| is large), and the mean field is nearly exact; where
ζ is in between it is loose. log q(ζ|x) has the same Σ c, which cancels: with l the logits of the posterior,

    log q(ζ|x) - Σ c = Σ_i softplus(l_i + b_i) - softplus(l_i).
"""

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn.functional import softplus

from dvaepp.kernels.products import linear
from dvaepp.numerics import bernoulli_entropy, full_precision
from dvaepp.objectives.groups import check_samples
from dvaepp.priors.base import BoltzmannPrior
from dvaepp.smoothing.base import Overlapping, first_order
from dvaepp.smoothing.groups import for_groups

SWEEPS = 5  # of the mean field; `tests/objectives/test_relaxed.py` prints what they leave
LARGEST = 40.0  # logit of m; sigmoid(-40) is 4e-18

Smoothings = Overlapping | Sequence[Overlapping]


@full_precision
def relaxed_log_prior(
    prior: BoltzmannPrior,
    zeta: Tensor | Sequence[Tensor],
    smoothing: Smoothings,
    log_z: Tensor | float,
    *,
    num_sweeps: int = SWEEPS,
) -> Tensor:
    """A lower bound on log p(ζ) by mean field, shape (batch,), for any Boltzmann prior and overlapping smoothing.

    `zeta` is (batch, units), or one tensor per group; `smoothing` is one for all units or one for each group. `log_z`
    is as for `boltzmann_kl`: an estimate for a number; the gradient of `prior.log_z_surrogate(chains)` for training.

    Choose it where importance weights are wanted with a Boltzmann prior: it gives ζ itself a density.

    >>> relaxed_log_prior(RBM(2, 2), torch.rand(5, 4), PowerLaw(40.0), log_partition(RBM(2, 2)).value).shape
    torch.Size([5])
    """
    groups = [zeta] if isinstance(zeta, Tensor) else list(zeta)
    each = for_groups(smoothing, len(groups))
    floor = torch.cat([s.log_density(g, 0) for g, s in zip(groups, each, strict=True)], -1).sum(-1)
    b = torch.cat([s.log_ratio(g) for g, s in zip(groups, each, strict=True)], -1)
    field = mean_field(prior, b, num_sweeps)
    m = torch.sigmoid(field)
    return first_order((b * m).sum(-1) - prior.energy(m) + bernoulli_entropy(field).sum(-1) + floor - log_z)


@full_precision
def relaxed_kl(
    prior: BoltzmannPrior,
    logits: Sequence[Tensor],
    zeta: Sequence[Tensor],
    smoothing: Smoothings,
    log_z: Tensor | float,
    *,
    path_only: bool = True,
    num_sweeps: int = SWEEPS,
) -> Tensor:
    """log q(ζ|x) - log p(ζ) at one sample, shape (batch,): an upper bound on it, with p(ζ) of `relaxed_log_prior`.

    `logits[a]` (batch, units of group a) are those of q(z_a|x, ζ_<a), `zeta[a]` the sample drawn with them, not
    detached. `path_only` is as for `marginal`: True for a bound of one sample, False where this is part of a weight of
    `importance_weighted`.

    Choose it to train such a model; `boltzmann_kl` has less noise where no importance weights are needed.

    >>> smoothing, logits = Exponential(8.0), torch.zeros(5, 4)
    >>> zeta = smoothing.sample(logits, torch.rand(5, 4))
    >>> relaxed_kl(RBM(2, 2), [logits], [zeta], smoothing, log_z=0.0).shape
    torch.Size([5])
    """
    check_samples(logits, zeta)
    each = for_groups(smoothing, len(zeta))
    b = torch.cat([s.log_ratio(g) for g, s in zip(zeta, each, strict=True)], -1)
    q = torch.cat(list(logits), -1)
    q = q.detach() if path_only else q
    field = mean_field(prior, b, num_sweeps)
    m = torch.sigmoid(field)
    # b is large where ζ is near an end. It leaves the difference unit by unit, before sums could lose digits to it.
    per_unit = softplus(q + b) - b * m - softplus(q) - bernoulli_entropy(field)
    return first_order(per_unit.sum(-1) + prior.energy(m) + log_z)


@torch.no_grad()
def mean_field(prior: BoltzmannPrior, b: Tensor, num_sweeps: int) -> Tensor:
    """logit(m) of the mean field of the machine with biases a + b, (batch, units): blocks in turn, without a graph."""
    order, conditionals = prior.block_form()
    b = b.detach() if order is None else b.detach()[..., order]
    field = torch.empty_like(b)
    for out, _, bias in conditionals:
        field[..., out] = b[..., out] + bias
    m = torch.sigmoid(field)
    for _ in range(num_sweeps):
        for out, weight, bias in conditionals:
            known = m if order is not None else m[..., _other(out, m.shape[-1])]
            field[..., out] = linear(known, weight.t(), bias).add_(b[..., out])
            m[..., out] = torch.sigmoid(field[..., out])
    # Any m gives a bound, and this one differs from the best by less than rounding; its smallest means have full
    # precision, without which their products are slow (`numerics.flushed`).
    field = field.clamp(-LARGEST, LARGEST)
    return field if order is None else field[..., order.argsort()]


def _other(out: slice, num_units: int) -> slice:
    """The other side of an RBM, which reads nothing but it."""
    return slice(0, out.start) if out.start > 0 else slice(out.stop, num_units)
