"""Weights that balance the KL over groups of latent variables while it is annealed (App. H).

    α_i = N α̂_i / Σ_j α̂_j,   α̂_i = E_{x in batch} [KL_i] + ε,   objective: E[log p(x|z)] - γ Σ_i α_i KL_i

A group with a small KL is penalised less and keeps its units. α carries no gradient and averages to one; once γ = 1
the loop sets every α_i to one.
"""

from torch import Tensor


def kl_balance(kl: Tensor, epsilon: float = 0.1) -> Tensor:  # App. H
    """α (groups,) from the KL of each group and example, (groups, batch); no gradient flows through it.

    A Monte-Carlo KL may average below zero on a batch, where the KL itself cannot: such a group counts as zero, so that
    no weight turns negative.

    Choose it in the warm-up of models with many groups, so that none of them is left unused (App. H).

    >>> kl_balance(torch.ones(2, 5))
    tensor([1., 1.])
    """
    if kl.dim() != 2 or 0 in kl.shape:
        raise ValueError(f"kl must have shape (groups >= 1, batch >= 1), got {tuple(kl.shape)}")
    if not epsilon > 0:
        raise ValueError(f"epsilon must be > 0, got {epsilon:g}: with 0 a group whose KL vanishes would stay off")
    alpha = kl.detach().mean(1).clamp_min(0) + epsilon
    return alpha / alpha.mean()
