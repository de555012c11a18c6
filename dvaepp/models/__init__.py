"""Models: networks, smoothings and priors put together, behind one protocol (`models/base.py`)."""

from dvaepp.models.base import Model, Terms
from dvaepp.models.binary_vae import BinaryVAE
from dvaepp.models.feedforward import FeedForward
from dvaepp.models.trained import Trained

__all__ = ["BinaryVAE", "FeedForward", "Model", "Terms", "Trained"]
