"""Terms of the bounds, each a function of tensors, in nats, shape (batch,)."""

from dvaepp.objectives.boltzmann import boltzmann_kl
from dvaepp.objectives.gaussian_integral import gaussian_integral_kl, gaussian_integral_log_prior
from dvaepp.objectives.importance import importance_weighted
from dvaepp.objectives.joint import joint, joint_per_group
from dvaepp.objectives.kl_balance import kl_balance
from dvaepp.objectives.marginal import marginal, marginal_per_group
from dvaepp.objectives.prior_kl import prior_kl
from dvaepp.objectives.relaxed import relaxed_kl, relaxed_log_prior
from dvaepp.objectives.spike import rolfe_kl

__all__ = [
    "boltzmann_kl",
    "gaussian_integral_kl",
    "gaussian_integral_log_prior",
    "importance_weighted",
    "joint",
    "joint_per_group",
    "kl_balance",
    "marginal",
    "marginal_per_group",
    "prior_kl",
    "relaxed_kl",
    "relaxed_log_prior",
    "rolfe_kl",
]
