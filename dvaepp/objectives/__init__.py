"""Terms of the bounds, each a function of tensors, in nats, shape (batch,)."""

from dvaepp.objectives.boltzmann import boltzmann_kl
from dvaepp.objectives.importance import importance_weighted
from dvaepp.objectives.joint import joint, joint_per_group
from dvaepp.objectives.kl_balance import kl_balance
from dvaepp.objectives.marginal import marginal, marginal_per_group
from dvaepp.objectives.prior_kl import prior_kl
from dvaepp.objectives.spike import rolfe_kl

__all__ = [
    "boltzmann_kl",
    "importance_weighted",
    "joint",
    "joint_per_group",
    "kl_balance",
    "marginal",
    "marginal_per_group",
    "prior_kl",
    "rolfe_kl",
]
