"""Importance-weighted log-likelihood of any model, its record in a run directory, and many images in pieces."""

from dvaepp.models.importance import log_likelihood, streamed_log_mean

__all__ = ["log_likelihood", "streamed_log_mean"]
