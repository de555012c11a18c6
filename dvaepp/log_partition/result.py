"""What every estimate of log Z returns."""

from typing import Any, NamedTuple


class LogPartition(NamedTuple):
    """log Z in nats with its standard error; `diagnostics["warnings"]` lists reasons not to trust it."""

    value: float
    standard_error: float
    method: str
    diagnostics: dict[str, Any]
