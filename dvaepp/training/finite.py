"""Losses and gradients that are no longer finite are found before the optimizer puts them into a parameter."""

import math
from typing import NamedTuple

import torch
from torch import Tensor

from dvaepp.kernels.adamax import all_finite
from dvaepp.training.state import State


class NonFinite(RuntimeError):
    """A loss or a gradient is infinite or no number; the parameters are those before the step."""


def check_finite(state: State, loss: Tensor) -> None:
    """Raise NonFinite unless the loss and every gradient are finite."""
    groups = [group for optimizer in state.optimizers for group in optimizer.param_groups]
    gradients = [p.grad for group in groups for p in group["params"] if p.grad is not None]
    if all_finite([loss, *gradients]):
        return
    step = state.step + 1
    if not math.isfinite(loss.item()):
        raise NonFinite(f"the loss is {loss.item()} at step {step}")
    named = [item for module in state.modules for item in module.named_parameters()]
    worst = [name for name, p in named if p.grad is not None and not bool(torch.isfinite(p.grad).all())]
    raise NonFinite(f"the gradient of {', '.join(worst[:3])} is not finite at step {step} ({len(worst)} tensors)")


class Before(NamedTuple):
    """The state before a step, with copies of what the step changes in place: the random generator and all buffers.

    A step whose loss is not finite has not touched the parameters, so this is enough to take it again.
    """

    state: State
    generator: Tensor
    buffers: list[Tensor]

    @classmethod
    def of(cls, state: State) -> "Before":
        return cls(state, state.generator.get_state(), [buffer.clone() for buffer in _buffers(state)])

    def restored(self) -> State:
        self.state.generator.set_state(self.generator)
        with torch.no_grad():
            for buffer, old in zip(_buffers(self.state), self.buffers, strict=True):
                buffer.copy_(old)
        return self.state


def _buffers(state: State) -> list[Tensor]:
    return [buffer for module in state.modules for buffer in module.buffers()]
