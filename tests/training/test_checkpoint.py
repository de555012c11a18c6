"""Checkpoints: whole or not at all, every damage noticed, the previous one used; older ones are read."""

import errno
import hashlib
import json
import os
import random
import stat
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from dvaepp import runs
from dvaepp.errors import UsageError
from dvaepp.training import checkpoint, train
from dvaepp.training.checkpoint import DamagedCheckpoint
from tests.training.toy import quiet, recipe, stripes


def _write(folder: Path, step: int, best: bool = False) -> None:
    tensors = {"a": torch.arange(6.0) + step, "b.c": torch.full((2, 3), step % 256, dtype=torch.uint8)}
    checkpoint.write(folder, tensors, {"step": step, "note": "µ"}, {"name": "toy"}, best)


def test_what_was_written_is_read(tmp_path: Path) -> None:
    _write(tmp_path, 7, best=True)
    for which in ("last", "best"):
        tensors, record, made_by, digest = checkpoint.read(tmp_path, which)
        assert record == {"step": 7, "note": "µ"} and made_by == {"name": "toy"}
        (file,) = tmp_path.glob("*.safetensors")
        assert digest == hashlib.sha256(file.read_bytes()).hexdigest(), "what `sha256sum` says of the tensors"
        assert torch.equal(tensors["a"], torch.arange(6.0) + 7) and tensors["b.c"].dtype == torch.uint8


def test_the_last_two_and_the_best_are_kept(tmp_path: Path) -> None:
    for step in range(1, 8):
        _write(tmp_path, step, best=step == 3)
    assert checkpoint.read(tmp_path).record["step"] == 7
    assert checkpoint.read(tmp_path, "best").record["step"] == 3
    stems = sorted(p.name.split("-")[1][:9] for p in tmp_path.glob("step-*.safetensors"))
    assert stems == ["000000003", "000000006", "000000007"]
    assert len(list(tmp_path.iterdir())) == 6, "three files of tensors, three manifests, nothing else"


def _damage(folder: Path, step: int, part: str = "safetensors") -> None:
    """Flip the last bit of a checkpoint's tensors or of its manifest ("json")."""
    (path,) = folder.glob(f"step-{step:09d}*.{part}")
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)


def _steps(folder: Path) -> list[int]:
    return sorted(int(path.stem.split("-")[1]) for path in folder.glob("step-*.json"))


@pytest.mark.parametrize("damaged", [True, False])
def test_what_was_just_written_is_kept_whatever_other_steps_lie_there(damaged: bool, tmp_path: Path) -> None:
    """A run that went back to step 10 writes lower numbers than those that lie there, damaged or not."""
    for step in (10, 30, 40):
        _write(tmp_path, step, best=step == 10)
    if damaged:
        _damage(tmp_path, 30)
        _damage(tmp_path, 40)
    before = {path.name: path.read_bytes() for path in tmp_path.glob("step-*[34]0*")}
    for step in (15, 16, 17):
        _write(tmp_path, step)
        assert checkpoint.read(tmp_path).record["step"] == step
    assert _steps(tmp_path) == [16, 17] and checkpoint.read(tmp_path, "best").record["step"] == 10
    aside = {path.name.removesuffix(".superseded"): path.read_bytes() for path in tmp_path.glob("*.superseded")}
    assert aside == before, "what a run went back behind is kept under another name"


def test_steps_are_ordered_as_numbers(tmp_path: Path) -> None:
    for step in (999_999_999, 1_000_000_000, 1_000_000_001):
        _write(tmp_path, step)
    assert checkpoint.read(tmp_path).record["step"] == 1_000_000_001


@pytest.mark.parametrize("part", ["json", "safetensors"])
def test_a_run_that_goes_on_sets_damaged_checkpoints_aside_and_names_them(part: str, tmp_path: Path) -> None:
    for step in (10, 30, 40):
        _write(tmp_path, step, best=step == 10)
    _damage(tmp_path, 30, part)
    _damage(tmp_path, 40, part)
    before = {path.name: path.read_bytes() for path in tmp_path.glob("step-*[34]0*")}
    said: list[str] = []
    assert checkpoint.recover(tmp_path, say=said.append).record["step"] == 10
    assert len(said) == 2
    for step, line in zip((40, 30), said, strict=True):
        assert f"step-0000000{step}" in line and "is damaged" in line
        assert line.endswith("set aside with the ending .damaged; using best.json, step 10, instead")
    aside = {path.name.removesuffix(".damaged"): path.read_bytes() for path in tmp_path.glob("*.damaged")}
    assert aside == before and not _steps(tmp_path), "every byte is still there, and nothing is read by mistake"
    assert checkpoint.recover(tmp_path, say=said.append).record["step"] == 10 and len(said) == 2


def test_tensors_of_the_best_stay_when_another_manifest_of_theirs_is_damaged(tmp_path: Path) -> None:
    _write(tmp_path, 10)
    _write(tmp_path, 20, best=True)
    _damage(tmp_path, 20, "json")
    assert checkpoint.recover(tmp_path, say=quiet).record["step"] == 10
    assert checkpoint.read(tmp_path, "best").record["step"] == 20


def test_damaged_tensors_take_every_manifest_that_names_them_aside(tmp_path: Path) -> None:
    _write(tmp_path, 10)
    _write(tmp_path, 20, best=True)
    _damage(tmp_path, 20)
    assert checkpoint.recover(tmp_path, say=quiet).record["step"] == 10
    assert sorted(path.name.split(".", 1)[1] for path in tmp_path.glob("*.damaged")) == [
        "json.damaged",
        "json.damaged",
        "safetensors.damaged",
    ]
    assert checkpoint.read(tmp_path, "best", say=pytest.fail).record["step"] == 10


def test_what_is_set_aside_replaces_nothing_set_aside_before(tmp_path: Path) -> None:
    kept = set()
    for _ in range(3):
        _write(tmp_path, 10)
        _write(tmp_path, 20)
        (tmp_path / "step-000000020.json").write_text(f"damage {len(kept)}")
        kept.add(f"damage {len(kept)}")
        checkpoint.recover(tmp_path, say=quiet)
    assert {path.read_text() for path in tmp_path.glob("step-000000020.json.damaged*")} == kept


def test_reading_a_run_renames_nothing(tmp_path: Path) -> None:
    """It may belong to a process that trains in it, or lie where nothing can be written."""
    _write(tmp_path, 10)
    _write(tmp_path, 20)
    _damage(tmp_path, 20)
    before = sorted(path.name for path in tmp_path.iterdir())
    assert checkpoint.read(tmp_path).record["step"] == 10
    assert sorted(path.name for path in tmp_path.iterdir()) == before


def test_files_have_the_mode_that_the_umask_gives(tmp_path: Path) -> None:
    before = os.umask(0o027)
    try:
        _write(tmp_path / "new", 1, best=True)
    finally:
        os.umask(before)
    modes = {stat.S_IMODE(path.stat().st_mode) for path in (tmp_path / "new").iterdir()}
    assert modes == {0o640}


@pytest.fixture(scope="module")
def two_checkpoints(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("two") / "checkpoints"
    _write(folder, 1)
    _write(folder, 2)
    return folder


def test_250_damages_are_noticed_named_and_passed_over(two_checkpoints: Path) -> None:
    """50 truncations and 200 flipped bits, over all files of the last checkpoint in turn (fixed seed)."""
    rng = random.Random(0)
    manifest = two_checkpoints / "step-000000002.json"
    files = [manifest, *two_checkpoints.glob("step-000000002-*.safetensors")]
    assert len(files) == 2
    said: list[str] = []
    for trial in range(250):
        path = files[trial % 2]
        good = path.read_bytes()
        if trial < 50:
            bad = good[: rng.randrange(len(good))]
        else:
            place = rng.randrange(8 * len(good))
            bad = bytearray(good)
            bad[place // 8] ^= 1 << place % 8
        path.write_bytes(bad)
        with pytest.raises(DamagedCheckpoint, match="is damaged") as found:
            checkpoint.read_one(manifest)
        assert found.value.path == path and str(path) in str(found.value)
        assert checkpoint.read(two_checkpoints, say=said.append).record["step"] == 1
        path.write_bytes(good)
    assert len(said) == 250 and "using step-000000001.json, step 1, instead" in said[0]
    assert checkpoint.read(two_checkpoints).record["step"] == 2


def test_where_all_are_damaged_the_first_is_named(tmp_path: Path) -> None:
    _write(tmp_path, 1)
    for path in tmp_path.glob("*.safetensors"):
        path.unlink()
    with pytest.raises(DamagedCheckpoint, match="step-000000001-.*it is missing"):
        checkpoint.read(tmp_path)
    with pytest.raises(UsageError, match="holds no checkpoint"):
        checkpoint.read(tmp_path / "nowhere")


def test_a_manifest_cannot_name_a_file_elsewhere(tmp_path: Path) -> None:
    """Only names inside the folder are opened, whatever a manifest with a good digest says."""
    secret = tmp_path / "secret.safetensors"
    save_file({"a": torch.ones(2)}, secret)
    data = secret.read_bytes()
    folder = tmp_path / "checkpoints"
    folder.mkdir()
    files = {"../secret.safetensors": {"sha256": checkpoint._digest(data), "bytes": len(data)}}
    content = {"schema": 2, "files": files, "record": {"step": 1}, "recipe": {}}
    (folder / "step-000000001.json").write_bytes(checkpoint._text(content))
    with pytest.raises(DamagedCheckpoint, match="missing"):
        checkpoint.read(folder)


def test_newer_schemas_say_what_to_do(tmp_path: Path) -> None:
    _write(tmp_path, 1)
    path = tmp_path / "step-000000001.json"
    content = json.loads(path.read_text())
    del content["sha256"]
    path.write_bytes(checkpoint._text({**content, "schema": 3}))
    with pytest.raises(UsageError, match="schema 3, this version reads 1 to 2: upgrade dvaepp"):
        checkpoint.read(tmp_path)


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return stripes(tmp_path_factory.mktemp("data"))


def test_a_run_of_schema_1_loads_and_resumes(tmp_path: Path) -> None:
    """The first schema had one file with the record in its header, `last` and `best`, and no digests."""
    images = stripes(tmp_path)
    made_by = recipe(images, steps=8)
    train(made_by, tmp_path / "run", say=quiet)
    folder = tmp_path / "run" / "checkpoints"
    saved = checkpoint.read(folder)
    for path in folder.iterdir():
        path.unlink()
    record = {"schema": 1, **saved.record}
    record["progress"] = {name: value for name, value in record["progress"].items() if name != "validated"}
    for name in ("best", "last"):
        save_file(saved.tensors, folder / f"{name}.safetensors", {"record": json.dumps(record)})
    old = runs.load(tmp_path / "run")
    assert old.record["step"] == 8
    longer = recipe(images, steps=12)
    train(longer, tmp_path / "run", resume=True, say=quiet)
    assert checkpoint.read(folder).record["step"] == 12
    assert not list(folder.glob("last.*")), "what is no longer needed is dropped"


def test_a_full_disk_is_told_and_leaves_the_old_checkpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _write(tmp_path, 1)
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}

    def full(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        with pytest.raises(OSError, match=r"cannot write .*step-000000002-.*\(\d+ bytes\): No space left.*free some"):
            _write(tmp_path, 2)
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before


@pytest.mark.parametrize(
    "change",
    [
        {"record": []},
        {"record": {"step": 4}},
        {"record": {"step": 4, "image_shape": "6x6"}},
        {"record": {"step": 4, "image_shape": [1, 10**6, 10**6]}},
        {"record": {"step": 4, "image_shape": [1, 6.5, 6]}},
        {"record": {"step": 4, "image_shape": [1, 6, "6"]}},
        {"record": {"step": 4, "image_shape": [True, 6, 6]}},
        {"record": {"step": 4, "image_shape": [1, -6, -6]}},
        {"record": {"step": 4, "image_shape": [1, 0, 6]}},
        {"record": {"step": 4, "image_shape": [36]}},
        {"record": {"step": 4, "image_shape": [1, 1, 6, 6]}},
        {"files": []},
        {"files": {}},
    ],
)
def test_a_crafted_manifest_gives_one_line(change: dict[str, object], tmp_path: Path) -> None:
    """Its digest is right; what it holds is not."""
    train(recipe(stripes(tmp_path), steps=4), tmp_path / "run", say=quiet)
    folder = tmp_path / "run" / "checkpoints"
    for path in folder.glob("*.json"):
        content = json.loads(path.read_text())
        del content["sha256"]
        path.write_bytes(checkpoint._text({**content, **change}))
    with pytest.raises(OSError) as found:
        runs.load(tmp_path / "run", say=quiet)
    assert "\n" not in str(found.value) and str(tmp_path / "run") in str(found.value)


@pytest.mark.parametrize("name", ["table2.rbm", "table3.rbm"])
@pytest.mark.parametrize("shape", [[1, 40_000, 40_000], [1, 40_000, 1], [40_000, 6, 6], [1, 6, 9]])
def test_a_hostile_image_shape_is_refused_before_anything_is_allocated(
    name: str, shape: list[int], images: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No tensor of the promised size is made, whichever way: the model is not even begun."""
    train(recipe(images, name, steps=2), tmp_path / "run", say=quiet)
    for path in (tmp_path / "run" / "checkpoints").glob("*.json"):
        content = json.loads(path.read_text())
        del content["sha256"]
        content["record"]["image_shape"] = shape
        path.write_bytes(checkpoint._text(content))
    monkeypatch.setattr(runs, "build_model", lambda *a: pytest.fail("the model was begun"))
    zeros = torch.zeros

    def small(*size: Any, **options: Any) -> torch.Tensor:
        """What reading a recipe makes of a prior is small; nothing of the stated shape is."""
        made = zeros(*size, **options | {"device": "meta"})
        assert made.numel() < 10_000 and list(made.shape) != shape, "a tensor of the stated shape was made"
        return zeros(*size, **options)

    monkeypatch.setattr(torch, "zeros", small)
    with pytest.raises((OSError, UsageError)) as found:
        runs.load(tmp_path / "run", say=quiet)
    assert "\n" not in str(found.value) and str(shape) in str(found.value)
