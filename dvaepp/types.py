"""Tensor aliases. Shapes are checked by beartype while tests run and cost nothing otherwise."""

from jaxtyping import Float
from torch import Size, Tensor

Units = Float[Tensor, "..."]
"""One number per unit; shapes broadcast as in torch.distributions."""

Parameter = float | int | Tensor
"""A scalar, or one value per unit."""

Shape = Size | list[int] | tuple[int, ...]
