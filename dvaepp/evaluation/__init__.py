"""Importance-weighted log-likelihood."""

from dvaepp.evaluation.importance import log_likelihood

__all__ = ["log_likelihood"]
