"""Checkpoints: tensors in safetensors, everything else in a JSON manifest with the SHA-256 of what it names. No pickle.

    checkpoints/step-000001200.json                   a manifest: schema, step, recipe, record, files with their digests
    checkpoints/step-000001200-3f2a9c11.safetensors   its tensors; the letters are the first of their digest
    checkpoints/best.json                             the manifest of the best validation so far

A file is written under a temporary name beside its own, flushed to disk and renamed, the manifest last: whatever
happens in between, every manifest names complete files. The last two and the best are kept. A manifest ends in the
digest of itself, so that no damaged byte goes unnoticed anywhere.

A run that finds damaged checkpoints goes on from an earlier one and then writes lower step numbers than theirs. So
that the highest step is always the one written last, whatever lies above it gets another name and stays on the disk:
`.damaged` where a resumed run found it so, `.superseded` where it is merely of a later step than the one written.
"""

import hashlib
import json
import re
from collections.abc import Callable, Mapping, Sequence
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
    """Named tensors, a small JSON-able record with the `step`, and the recipe of the run, which schema 1 does not have.

    `digest` is the SHA-256 of the file of tensors, by which evaluations name this checkpoint.
    """

    tensors: dict[str, Tensor]
    record: dict[str, Any]
    recipe: dict[str, Any] | None = None
    digest: str = ""


class DamagedCheckpoint(OSError):
    """A file of a checkpoint is not what was written; `path` is the file."""

    def __init__(self, path: Path, reason: str) -> None:
        super().__init__(f"{path} is damaged: {reason}")
        self.path = path


def write(
    folder: Path, tensors: Mapping[str, Tensor], record: Mapping[str, Any], recipe: Mapping[str, Any], best: bool
) -> str:
    """Write the checkpoint of record["step"], also as the best one if `best` says so, and delete those no longer kept.

    Returns the digest of the tensors.
    """
    folder.mkdir(parents=True, exist_ok=True)
    data = save({name: tensor.detach().contiguous().cpu() for name, tensor in tensors.items()})
    digest = _digest(data)
    stem = f"step-{record['step']:09d}"
    name = f"{stem}-{digest[:8]}.safetensors"
    files = {name: {"sha256": digest, "bytes": len(data)}}
    manifest = _text({"schema": SCHEMA, "files": files, "record": dict(record), "recipe": dict(recipe)})
    write_durably(folder / name, data)
    write_durably(folder / f"{stem}.json", manifest)
    if best:
        write_durably(folder / "best.json", manifest)
    _set_aside(folder, [path for path in _manifests(folder) if _step(path) > record["step"]], ".superseded")
    _drop_old(folder)
    return digest


def exists(folder: Path) -> bool:
    return bool(_candidates(folder, "last"))


def read(
    folder: Path, which: str = "last", device: str = "cpu", say: Callable[[str], None] | None = None
) -> Checkpoint:
    """The "last" or the "best" checkpoint of a folder; where that is damaged, the nearest intact one, saying so."""
    found = _first_intact(folder, which, device)
    for error in found.damaged.values():
        if say is not None:
            say(f"{error}; using {found.manifest.name}, step {found.checkpoint.record['step']}, instead")
    return found.checkpoint


def recover(folder: Path, device: str = "cpu", say: Callable[[str], None] = lambda line: None) -> Checkpoint:
    """The last intact checkpoint of a run that is about to go on from it; damaged ones are named and set aside."""
    found = _first_intact(folder, "last", device)
    unusable = {error.path.name for error in found.damaged.values()}
    also = [path for path in [*_manifests(folder), folder / "best.json"] if unusable & set(_named(path))]
    _set_aside(folder, [*found.damaged, *also], ".damaged")
    for error in found.damaged.values():
        instead = f"using {found.manifest.name}, step {found.checkpoint.record['step']}, instead"
        say(f"{error}; set aside with the ending .damaged; {instead}")
    return found.checkpoint


def last_record(folder: Path) -> dict[str, Any] | None:
    """The record of the last checkpoint whose manifest is intact, without its tensors; None for older schemas."""
    for path in _candidates(folder, "last"):
        try:
            record: dict[str, Any] = _manifest(path)["record"]
            return record
        except DamagedCheckpoint:
            continue
    return None


class _Intact(NamedTuple):
    """An intact checkpoint, its manifest, and the manifests that were tried before it with what is wrong with each."""

    checkpoint: Checkpoint
    manifest: Path
    damaged: dict[Path, DamagedCheckpoint]


def _first_intact(folder: Path, which: str, device: str) -> _Intact:
    candidates = _candidates(folder, which)
    if not candidates:
        raise UsageError(f"{folder} holds no checkpoint: {folder.parent} is not a run directory, or nothing was saved")
    damaged: dict[Path, DamagedCheckpoint] = {}
    for path in candidates:
        try:
            return _Intact(read_one(path, device), path, damaged)
        except DamagedCheckpoint as error:
            damaged[path] = error
    raise next(iter(damaged.values()))


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
    digests = [expected["sha256"] for expected in manifest["files"].values()]
    digest = digests[0] if len(digests) == 1 else _digest("".join(digests).encode())
    return Checkpoint(tensors, manifest["record"], manifest["recipe"], digest)


def with_prefix(prefix: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {f"{prefix}.{name}": tensor for name, tensor in tensors.items()}


def under(prefix: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    start = f"{prefix}."
    return {name.removeprefix(start): tensor for name, tensor in tensors.items() if name.startswith(start)}


def _candidates(folder: Path, which: str) -> list[Path]:
    """The files that may serve as the "last" or the "best" checkpoint, in the order in which they are tried."""
    steps = _manifests(folder)[::-1]
    best = [path for path in (folder / "best.json", folder / "best.safetensors") if path.is_file()][:1]
    last = [path for path in (folder / "last.safetensors",) if path.is_file() and not steps]
    return best + steps + last if which == "best" else steps + last + best


def _manifests(folder: Path) -> list[Path]:
    """The manifests of steps, in the order of their numbers."""
    return sorted((path for path in folder.glob("step-*.json") if _step(path) >= 0), key=_step)


def _step(manifest: Path) -> int:
    match = re.fullmatch(r"step-(\d+)\.json", manifest.name)
    return int(match[1]) if match else -1


def _text(content: dict[str, Any]) -> bytes:
    """JSON in a canonical form, with the digest of its content in it."""
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
    with path.open("rb") as file:
        return Checkpoint(tensors, record, digest=hashlib.file_digest(file, "sha256").hexdigest())


def _named(manifest: Path) -> list[str]:
    """The files of tensors that a manifest names, all beside it; none where it cannot be read."""
    try:
        return [Path(name).name for name in _manifest(manifest)["files"]]
    except (DamagedCheckpoint, UsageError):
        return []


def _set_aside(folder: Path, manifests: Sequence[Path], ending: str) -> None:
    """Rename manifests, and those of their files of tensors that no other manifest names.

    Renamed files are neither read nor deleted any more. Files of tensors are renamed first. If a crash comes in
    between, their manifest names files that are missing; it is found damaged at the next start and renamed then.
    """
    others = [path for path in [*_manifests(folder), folder / "best.json"] if path not in manifests]
    elsewhere = {name for path in others for name in _named(path)}
    tensors = [name for path in manifests for name in _named(path) or _of_step(path) if name not in elsewhere]
    for path in dict.fromkeys([*(folder / name for name in tensors), *manifests]):
        _rename(path, ending)


def _of_step(manifest: Path) -> list[str]:
    """The files of tensors that belong to a manifest which cannot be read, found by the step in their names."""
    return [path.name for path in manifest.parent.glob(f"{manifest.stem}-*.safetensors")]


def _rename(path: Path, ending: str) -> None:
    """Add an ending that no other file has taken."""
    target, number = path.with_name(path.name + ending), 2
    while target.exists():
        target, number = path.with_name(f"{path.name}{ending}-{number}"), number + 1
    if path.is_file():
        path.rename(target)


def _drop_old(folder: Path) -> None:
    """Delete checkpoints that are no longer kept.

    A manifest is deleted before its files, so that a crash in between never leaves a manifest without its files.
    """
    manifests = _manifests(folder)
    for path in manifests[:-KEPT]:
        remove(path)
    remove(folder / "last.safetensors")
    kept = {name for path in [*manifests[-KEPT:], folder / "best.json"] for name in _named(path)}
    if (folder / "best.json").is_file():
        remove(folder / "best.safetensors")
    for path in [*folder.glob("step-*.safetensors"), *folder.glob(".*.partial")]:
        if path.name not in kept:
            remove(path)


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()
