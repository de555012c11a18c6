"""Training: the loop, its schedules and its checkpoints."""

from dvaepp.training.loop import train

__all__ = ["train"]
