"""Wiring of networks, smoothings and priors into models."""

from dvaepp.models.base import Model, Terms
from dvaepp.models.binary_vae import BinaryVAE
from dvaepp.models.feedforward import FeedForward
from dvaepp.models.trained import Trained

__all__ = ["BinaryVAE", "FeedForward", "Model", "Terms", "Trained"]
