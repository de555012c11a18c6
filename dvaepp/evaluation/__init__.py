"""Importance-weighted log-likelihood of any model."""

from typing import Any

from torch import Tensor

from dvaepp.evaluation import convolutional, importance
from dvaepp.evaluation.importance import streamed_log_mean
from dvaepp.models.dvaepp import DVAE
from dvaepp.models.feedforward import FeedForward

__all__ = ["log_likelihood", "streamed_log_mean"]


def log_likelihood(model: FeedForward | DVAE, x: Tensor, num_samples: int, **options: Any) -> Tensor:
    """(batch,) float64 estimates for images x (batch, channels, height, width); options as of the model's own."""
    if isinstance(model, DVAE):
        return convolutional.log_likelihood(model, x, num_samples, **options)
    return importance.log_likelihood(model, x.flatten(1), num_samples, **options)
