"""What a run writes about itself: one JSON object a line, and the same numbers for TensorBoard where asked."""

import json
from pathlib import Path
from types import TracebackType
from typing import Any

from dvaepp.errors import UsageError


class Metrics:
    """Appends records, each with its `step`, to `metrics.jsonl`; flushed line by line."""

    def __init__(self, folder: Path, tensorboard: bool) -> None:
        self._writer: Any = _writer(folder / "tensorboard") if tensorboard else None
        self._file = open(folder / "metrics.jsonl", "a", buffering=1)

    def write(self, record: dict[str, Any]) -> None:
        self._file.write(json.dumps(record) + "\n")
        if self._writer is not None:
            for name, value in scalars(record).items():
                self._writer.add_scalar(name, value, record["step"])

    def __enter__(self) -> "Metrics":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        self._file.close()
        if self._writer is not None:
            self._writer.close()


def scalars(record: dict[str, Any]) -> dict[str, float]:
    """Numbers by name; the entries of a list as name/1, name/2, ..."""
    found: dict[str, float] = {}
    for name, value in record.items():
        if isinstance(value, list):
            found |= {f"{name}/{index + 1}": float(entry) for index, entry in enumerate(value)}
        elif isinstance(value, (int, float)) and name != "step":
            found[name] = float(value)
    return found


def _writer(folder: Path) -> Any:
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        raise UsageError("training.tensorboard=true needs the extra: pip install 'dvaepp[tb]'") from None
    return SummaryWriter(str(folder))
