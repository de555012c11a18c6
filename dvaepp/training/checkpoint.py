"""Checkpoints: tensors in safetensors, everything else in a JSON manifest with the SHA-256 of what it names. No pickle.

    checkpoints/step-000001200.json                   a manifest: schema, step, recipe, record, files with their digests
    checkpoints/step-000001200-3f2a9c11.safetensors   its tensors; the letters are the first of their digest
    checkpoints/best.json                             the manifest of the best validation so far

A file is written under a temporary name beside its own, flushed to disk and renamed, the manifest last: whatever
happens in between, every manifest names complete files. The last two and the best are kept. A manifest ends in the
digest of itself, so that no damaged byte goes unnoticed anywhere.
"""

import hashlib
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from safetensors import safe_open
from safetensors.torch import load, save
from torch import Tensor

from dvaepp.errors import UsageError
from dvaepp.files import remove, write_durably

SCHEMA = 2
KEPT = 2


class Checkpoint(NamedTuple):
    """Named tensors, a small JSON-able record with the `step`, and the recipe they were trained by (schema 1: none)."""

    tensors: dict[str, Tensor]
    record: dict[str, Any]
    recipe: dict[str, Any] | None = None


class DamagedCheckpoint(OSError):
    """A file of a checkpoint is not what was written; `path` is the file."""

    def __init__(self, path: Path, reason: str) -> None:
        super().__init__(f"{path} is damaged: {reason}")
        self.path = path


def write(
    folder: Path, tensors: Mapping[str, Tensor], record: Mapping[str, Any], recipe: Mapping[str, Any], best: bool
) -> None:
    """Write the checkpoint of record["step"], and as the best one too if it is; then drop those no longer kept."""
    folder.mkdir(parents=True, exist_ok=True)
    data = save({name: tensor.detach().contiguous().cpu() for name, tensor in tensors.items()})
    digest = hashlib.sha256(data).hexdigest()
    stem = f"step-{record['step']:09d}"
    name = f"{stem}-{digest[:8]}.safetensors"
    files = {name: {"sha256": digest, "bytes": len(data)}}
    manifest = _text({"schema": SCHEMA, "files": files, "record": dict(record), "recipe": dict(recipe)})
    write_durably(folder / name, data)
    write_durably(folder / f"{stem}.json", manifest)
    if best:
        write_durably(folder / "best.json", manifest)
    _drop_old(folder)


def exists(folder: Path) -> bool:
    return bool(_candidates(folder, "last"))


def read(
    folder: Path, which: str = "last", device: str = "cpu", say: Callable[[str], None] | None = None
) -> Checkpoint:
    """The "last" or the "best" checkpoint of a folder; where that is damaged, the nearest intact one, saying so."""
    candidates = _candidates(folder, which)
    if not candidates:
        raise UsageError(f"{folder} holds no checkpoint: {folder.parent} is not a run directory, or nothing was saved")
    damaged: list[DamagedCheckpoint] = []
    for path in candidates:
        try:
            found = read_one(path, device)
        except DamagedCheckpoint as error:
            damaged.append(error)
            continue
        for each in damaged:
            if say is not None:
                say(f"{each}; using {path.name}, step {found.record['step']}, instead")
        return found
    raise damaged[0]


def read_one(path: Path, device: str = "cpu") -> Checkpoint:
    """The checkpoint of one manifest (or of one file of schema 1), every byte of it verified."""
    if path.suffix == ".safetensors":
        return _read_schema_1(path, device)
    manifest = _manifest(path)
    tensors: dict[str, Tensor] = {}
    for name, expected in manifest["files"].items():
        data = _verified(path.parent / Path(name).name, expected)
        try:
            tensors |= load(data)
        except Exception as error:
            raise DamagedCheckpoint(path.parent / name, f"it holds no tensors ({error})") from None
    if device != "cpu":
        tensors = {name: tensor.to(device) for name, tensor in tensors.items()}
    return Checkpoint(tensors, manifest["record"], manifest["recipe"])


def with_prefix(prefix: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {f"{prefix}.{name}": tensor for name, tensor in tensors.items()}


def under(prefix: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    start = f"{prefix}."
    return {name.removeprefix(start): tensor for name, tensor in tensors.items() if name.startswith(start)}


def _candidates(folder: Path, which: str) -> list[Path]:
    """What may be read for `which`, the wanted one first; files of schema 1 last."""
    steps = sorted(folder.glob("step-*.json"), reverse=True)
    best = [path for path in (folder / "best.json", folder / "best.safetensors") if path.is_file()][:1]
    last = [path for path in (folder / "last.safetensors",) if path.is_file() and not steps]
    return best + steps + last if which == "best" else steps + last + best


def _text(content: dict[str, Any]) -> bytes:
    """Canonical JSON with its own digest."""
    body = json.dumps(content, indent=1, sort_keys=True)
    return json.dumps({**content, "sha256": _digest(body.encode())}, indent=1, sort_keys=True).encode() + b"\n"


def _manifest(path: Path) -> dict[str, Any]:
    try:
        data = path.read_bytes()
        content = json.loads(data)
        digest = content.pop("sha256")
        canonical = _text(content)
    except FileNotFoundError:
        raise DamagedCheckpoint(path, "it is missing") from None
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        raise DamagedCheckpoint(path, "it is no manifest") from None
    if canonical != data:
        raise DamagedCheckpoint(path, f"expected sha256 {digest}, found another content")
    schema = content.get("schema")
    if schema != SCHEMA:
        raise UsageError(f"{path} has checkpoint schema {schema}, this version reads 1 to {SCHEMA}: upgrade dvaepp")
    kinds = {"files": dict, "record": dict, "recipe": dict}
    if any(not isinstance(content.get(name), kind) for name, kind in kinds.items()):
        raise DamagedCheckpoint(path, f"it lacks {', '.join(kinds)}")
    manifest: dict[str, Any] = content
    return manifest


def _verified(path: Path, expected: Mapping[str, Any]) -> bytes:
    if not path.is_file():
        raise DamagedCheckpoint(path, "it is missing")
    if not isinstance(expected, dict) or path.stat().st_size != expected.get("bytes"):
        raise DamagedCheckpoint(path, f"expected {expected}, found {path.stat().st_size} bytes")
    data = path.read_bytes()
    if _digest(data) != expected.get("sha256"):
        raise DamagedCheckpoint(path, f"expected sha256 {expected.get('sha256')}, found {_digest(data)}")
    return data


def _read_schema_1(path: Path, device: str) -> Checkpoint:
    """Tensors and record in one file, without digest: written before version 0.2."""
    try:
        with safe_open(path, framework="pt", device=device) as file:
            record = json.loads((file.metadata() or {})["record"])
            tensors = {name: file.get_tensor(name) for name in file.keys()}
    except Exception as error:
        raise DamagedCheckpoint(path, str(error)) from None
    if not isinstance(record, dict) or record.pop("schema", None) != 1:
        raise UsageError(f"{path} has an unknown checkpoint schema; this version reads 1 to {SCHEMA}: upgrade dvaepp")
    return Checkpoint(tensors, record)


def _drop_old(folder: Path) -> None:
    """Manifests before files, so that a crash in between leaves files without a manifest, not the other way round."""
    manifests = sorted(folder.glob("step-*.json"))
    for path in manifests[:-KEPT]:
        remove(path)
    remove(folder / "last.safetensors")
    kept: set[str] = set()
    for path in [*manifests[-KEPT:], folder / "best.json"]:
        try:
            kept |= set(_manifest(path)["files"])
        except (DamagedCheckpoint, UsageError):
            continue
    if (folder / "best.json").is_file():
        remove(folder / "best.safetensors")
    for path in [*folder.glob("step-*.safetensors"), *folder.glob(".*.partial")]:
        if path.name not in kept:
            remove(path)


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()
