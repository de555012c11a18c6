"""Aliases of types. Shapes of tensors are checked by beartype while tests run and cost nothing otherwise."""

from typing import SupportsIndex

from jaxtyping import Float
from torch import Size, Tensor

Units = Float[Tensor, "..."]
"""One number per unit; shapes broadcast as in torch.distributions."""

Parameter = float | int | Tensor
"""A scalar, or one value per unit."""

Shape = Size | list[int] | tuple[int, ...]

Count = SupportsIndex
"""An int, or a whole number of NumPy or torch."""
