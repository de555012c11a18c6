"""Training: the loop, its schedules and its checkpoints."""

from dvaepp.training.loop import train
from dvaepp.training.replay import replay

__all__ = ["replay", "train"]
