"""What a model is made of: its modules, what they end at and their parameters."""

from typing import NamedTuple

from torch import nn


class Row(NamedTuple):
    module: str
    blocks: str
    output: str
    parameters: int


def modules(model: nn.Module) -> list[Row]:
    """A row for each module that a model consists of, and one for parameters of its own."""
    rows = [Row(name, type(child).__name__, "", count(child)) for name, child in model.named_children()]
    own = sum(p.numel() for p in model.parameters(recurse=False))
    return rows + ([Row("own parameters", "", "", own)] if own else [])


def count(module: nn.Module) -> int:
    return sum(p.numel() for p in module.parameters())
