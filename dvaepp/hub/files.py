"""The files of a model in a repository: which there may be, and that each of them is what it should be.

Names are taken from a stranger's list and matched in full, so that no name leads out of the folder, and no kind of file
that could hold a program, such as a pickle, is ever fetched.
"""

import hashlib
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from dvaepp import runs
from dvaepp.errors import UsageError, visible
from dvaepp.evaluation import record as evaluations
from dvaepp.recipes.schema import Recipe
from dvaepp.training import checkpoint

if TYPE_CHECKING:
    from huggingface_hub.hf_api import RepoSibling

MAY_BE = re.compile(
    r"README\.md|recipe\.json|evaluation\.json|checkpoints/best\.json|checkpoints/step-\d{9}\.json"
    r"|checkpoints/step-\d{9}-[0-9a-f]{8}\.safetensors|samples/[\w-]{1,60}\.png",
    re.ASCII,
)
MUST_BE = ("recipe.json", "checkpoints/best.json")
OF_THE_HUB = (".gitattributes",)  # made by the Hub for itself
LARGEST = 10_000_000  # bytes of a file that is not of tensors


def known(names: Iterable[str], repo: str) -> list[str]:
    """The names that a model's files have; refuses a repository that holds anything else."""
    found = [name for name in names if name not in OF_THE_HUB]
    if others := [name for name in found if not MAY_BE.fullmatch(name)]:
        raise UsageError(
            f"{repo} holds {visible(others[0])[:100]}, which is no file of a dvaepp model (safetensors, JSON, "
            "README.md and PNG); nothing was read or written: choose another repository"
        )
    return found


def complete(listed: "Sequence[RepoSibling]", repo: str) -> "list[RepoSibling]":
    """The files to fetch, once it is clear that they make a model."""
    names = known([each.rfilename for each in listed], repo)
    if missing := [name for name in MUST_BE if name not in names]:
        raise UsageError(f"{repo} is not a model of dvaepp: it has no {missing[0]}")
    for each in listed:
        if not each.rfilename.endswith(".safetensors") and (each.size or 0) > LARGEST:
            raise UsageError(f"{repo}: {each.rfilename} has {each.size} bytes, and at most {LARGEST} are expected")
    return [each for each in listed if each.rfilename in names]


def check(path: Path, listed: "RepoSibling") -> None:
    """Hold a file against the Hub's digest: SHA-256 of a large file, git's object name of another."""
    data = path.read_bytes()
    expected = listed.blob_id if listed.lfs is None else listed.lfs.sha256
    git = hashlib.sha1(b"blob %d\0" % len(data) + data)
    found = (git if listed.lfs is None else hashlib.sha256(data)).hexdigest()
    if found != expected:
        raise OSError(f"{listed.rfilename} is damaged: expected digest {expected}, found {found}; pull again")


def buildable(recipe: Recipe) -> bool:
    """Whether the library can make the model; that of one's own networks only its author's program can."""
    try:
        recipe.model.check_buildable()
    except UsageError:
        return False
    return True


def check_model(folder: Path, repo: str) -> None:
    """Hold a fetched model against its own digests and shapes; nothing damaged or foreign passes for a part of it."""
    try:
        recipe = runs.read_recipe(folder)
        for manifest in sorted((folder / "checkpoints").glob("*.json")):
            stored = checkpoint.read_one(manifest).recipe
            if stored is None or Recipe.model_validate(stored) != recipe:
                raise OSError(f"{manifest.name} has another recipe than recipe.json")
        if buildable(recipe):
            runs.load(folder)
        if (folder / evaluations.FILE).exists():
            runs.evaluation_of(folder)
    except (OSError, ValueError) as error:
        told = " ".join(str(error).split()).replace(f"{folder}/", "").replace(str(folder), repo)
        raise OSError(f"the model in {repo} is not intact, and nothing was kept of it: {told}") from None
