"""Checkpoints: tensors in safetensors, the rest in its JSON header; written whole or not at all. No pickle."""

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from safetensors import safe_open
from safetensors.torch import save
from torch import Tensor

from dvaepp.errors import UsageError

SCHEMA = 1


class Checkpoint(NamedTuple):
    """Named tensors and a small JSON-able record."""

    tensors: dict[str, Tensor]
    record: dict[str, Any]


def write(path: Path, tensors: Mapping[str, Tensor], record: Mapping[str, Any]) -> None:
    """Write to a temporary name beside `path`, flush to disk, rename: a crash leaves the old file or the new one."""
    path.parent.mkdir(parents=True, exist_ok=True)
    contiguous = {name: tensor.detach().contiguous().cpu() for name, tensor in tensors.items()}
    data = save(contiguous, metadata={"record": json.dumps({"schema": SCHEMA, **record})})
    partial = path.with_name(f".{path.name}.{os.getpid()}.partial")
    try:
        with open(partial, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)


def read(path: Path, device: str = "cpu") -> Checkpoint:
    if not path.is_file():
        raise UsageError(f"{path} is missing: {path.parents[1]} is not a run directory, or nothing was saved yet")
    try:
        with safe_open(path, framework="pt", device=device) as file:
            record = json.loads((file.metadata() or {})["record"])
            tensors = {name: file.get_tensor(name) for name in file.keys()}
    except Exception as error:
        raise OSError(f"checkpoint {path} is damaged ({error}); remove it and resume from the other one") from None
    if record.get("schema") != SCHEMA:
        raise UsageError(f"{path} has checkpoint schema {record.get('schema')}, this version reads {SCHEMA}")
    return Checkpoint(tensors, record)


def with_prefix(prefix: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {f"{prefix}.{name}": tensor for name, tensor in tensors.items()}


def under(prefix: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    start = f"{prefix}."
    return {name.removeprefix(start): tensor for name, tensor in tensors.items() if name.startswith(start)}
