"""Terms of the bounds, each a function of tensors, in nats, shape (batch,)."""

from dvaepp.objectives.boltzmann import boltzmann_kl

__all__ = ["boltzmann_kl"]
