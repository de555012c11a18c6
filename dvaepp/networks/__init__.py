"""Networks in plain torch, from which models are built; none of them knows of latent variables."""

from dvaepp.networks.dense import Dense, truncated_normal_

__all__ = ["Dense", "truncated_normal_"]
