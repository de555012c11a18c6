"""The base of every section of a recipe: it is frozen, refuses unknown keys, and holds finite numbers only."""

from pydantic import BaseModel, ConfigDict


class Config(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)
