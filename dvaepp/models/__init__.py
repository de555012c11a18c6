"""Wiring of networks, smoothings and priors into models."""

from dvaepp.models.feedforward import FeedForward, Posterior

__all__ = ["FeedForward", "Posterior"]
