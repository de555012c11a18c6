"""Files that are written whole or not at all."""

import os
from pathlib import Path


def write_whole(out: Path, data: bytes) -> None:
    """Write beside `out` and rename: a failure leaves whatever was there before."""
    out.parent.mkdir(parents=True, exist_ok=True)
    partial = out.with_name(f".{out.name}.{os.getpid()}.partial")
    try:
        partial.write_bytes(data)
        partial.replace(out)
    finally:
        partial.unlink(missing_ok=True)
