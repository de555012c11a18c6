"""metrics.jsonl, one JSON object on each line, and the same numbers for TensorBoard if the recipe asks for them."""

import json
import math
import time
from pathlib import Path
from types import TracebackType
from typing import Any

from dvaepp.errors import UsageError
from dvaepp.files import write_durably


class Metrics:
    """Appends records, each with its `step`, to `metrics.jsonl`; flushed line by line."""

    def __init__(self, folder: Path | None, tensorboard: bool, first_step: int = 0, validated: int = 0) -> None:
        """Open the file for a run at `first_step`, whose last validation was at step `validated`.

        A resumed run repeats the steps after its checkpoint, so lines of later steps and validations are removed.
        """
        self._writer: Any = None
        self._file: Any = None
        if folder is None:  # of several processes only the first writes
            return
        if tensorboard:
            self._writer = summary_writer(folder / "tensorboard", purge_step=first_step + 1)
        self._path = folder / "metrics.jsonl"
        self._cpu_before = _cut(self._path, first_step, validated) - time.process_time()
        self._file = open(self._path, "a", buffering=1)

    def write(self, record: dict[str, Any]) -> None:
        if self._file is None:
            return
        line = json.dumps({**record, "cpu_seconds": round(self._cpu_before + time.process_time(), 2)}) + "\n"
        try:
            self._file.write(line)
        except OSError as error:
            text = f"cannot write {self._path} ({len(line)} bytes): {error.strerror}; mend it, then --resume"
            raise OSError(error.errno, text) from None
        if self._writer is not None:
            for name, value in scalars(record).items():
                self._writer.add_scalar(name, value, record["step"])

    def __enter__(self) -> "Metrics":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        if self._file is not None:
            try:
                self._file.close()
            except OSError:  # the disk is full, which `write` has reported already
                pass
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


def _cut(path: Path, last_step: int, validated: int) -> float:
    """Remove later lines and an incomplete last line; return the CPU seconds up to the last line that is kept."""
    if not path.exists():
        return 0.0
    lines = path.read_bytes().splitlines(keepends=True)
    kept = [
        line
        for line in lines
        if line.endswith(b"\n") and _step(line) <= (validated if b'"validation_bound"' in line else last_step)
    ]
    if len(kept) < len(lines):
        write_durably(path, b"".join(kept))
    return float(json.loads(kept[-1]).get("cpu_seconds", 0.0)) if kept else 0.0


def _step(line: bytes) -> float:
    try:
        return float(json.loads(line)["step"])
    except (ValueError, KeyError, TypeError):
        return math.inf


def summary_writer(folder: Path | str, purge_step: int | None = None) -> Any:
    """A writer for TensorBoard; what the folder holds of steps from `purge_step` on is not shown any more."""
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        raise UsageError("TensorBoard needs the extra: pip install 'dvaepp[tb]'") from None
    return SummaryWriter(str(folder), purge_step=purge_step)
