"""Networks that know no latent variables."""

from dvaepp.networks.dense import Dense, truncated_normal_

__all__ = ["Dense", "truncated_normal_"]
