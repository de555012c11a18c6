"""What every estimate of log Z returns."""

from typing import Any, NamedTuple


class LogPartition(NamedTuple):
    """log Z in nats with its standard error; `diagnostics["warnings"]` lists reasons not to trust it.

    Choose it to read an estimate; a log-likelihood's error bar has to contain its `standard_error`.

    >>> log_partition(RBM(2, 2)).standard_error
    0.0
    """

    value: float
    standard_error: float
    method: str
    diagnostics: dict[str, Any]
