"""What the bounds ask of their groups of tensors."""

from collections.abc import Sequence

import torch
from torch import Tensor


def check_samples(logits: Sequence[Tensor], zeta: Sequence[Tensor]) -> None:
    """Refuse samples that do not have the shape of their logits, group by group."""
    _check_lists(logits=logits, zeta=zeta)
    if not logits or [g.shape for g in logits] != [s.shape for s in zeta]:
        shapes = [[tuple(t.shape) for t in tensors] for tensors in (logits, zeta)]
        raise ValueError(f"logits and zeta must have one equal shape per group, got {shapes[0]} and {shapes[1]}")


def check_prior_logits(logits: Sequence[Tensor], prior_logits: Sequence[Tensor]) -> None:
    """Refuse groups that differ in number or batch, and prior logits that do not broadcast to the posterior's."""
    _check_lists(logits=logits, prior_logits=prior_logits)
    batches = {q.shape[:-1] for q in logits}
    same_number = len(logits) == len(prior_logits) > 0
    if not same_number or len(batches) > 1 or not all(map(_broadcasts_to, prior_logits, logits)):
        shapes = [[tuple(t.shape) for t in tensors] for tensors in (logits, prior_logits)]
        raise ValueError(
            "logits must have one shape (batch, units) per group and prior_logits broadcast to it, "
            f"got {shapes[0]} and {shapes[1]}"
        )


def _check_lists(**given: object) -> None:
    """Refuse a tensor in place of a list: its rows would be taken for groups."""
    for name, value in given.items():
        if isinstance(value, Tensor):
            raise ValueError(f"{name} must be a list with one tensor per group; for one group give [{name}]")


def _broadcasts_to(tensor: Tensor, target: Tensor) -> bool:
    if tensor.shape == target.shape:  # the common case, without the rules of broadcasting
        return True
    try:
        return torch.broadcast_shapes(tensor.shape, target.shape) == target.shape
    except RuntimeError:
        return False
