"""What the page may ask. Strict types, no unknown fields, and limits: a request is small, and so is its answer."""

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, StringConstraints

BODY_LIMIT = 2**18  # bytes
MOST_IMAGES = 64

Seed = Annotated[int, Field(ge=0, lt=2**31)]
Count = Annotated[int, Field(ge=1, le=MOST_IMAGES)]
Bits = Annotated[str, StringConstraints(pattern="^[01]*$", max_length=2**16)]
"""One digit per unit."""


class Request(BaseModel):
    model_config = ConfigDict(strict=True, extra="forbid", frozen=True)


class Nothing(Request):
    """A question without arguments."""


class Code(Request):
    """A code. `seed` fixes the latents below it, so that two codes can be compared."""

    bits: Bits
    seed: Seed = 0


class Draw(Request):
    """So many images, other ones for another seed."""

    count: Count = 16
    seed: Seed = 0


class Way(Request):
    """From one code to another."""

    start: Bits
    end: Bits
    seed: Seed = 0


class Near(Request):
    """The images whose codes are nearest to this one."""

    bits: Bits
    count: Count = 12


class Paint(Request):
    """An image to complete, one letter per pixel: hidden ?, black 0, white 1, or = as in the data set's image `of`."""

    pixels: Annotated[str, StringConstraints(pattern="^[?01=]*$", max_length=2**17)]
    of: Annotated[int, Field(ge=0, lt=2**31)] | None = None
    count: Annotated[int, Field(ge=1, le=12)] = 6
    rounds: Annotated[int, Field(ge=4, le=400)] = 40
    seed: Seed = 0
