"""Share models: `models`, `export`, `push`, `pull`."""

from pathlib import Path
from typing import Annotated

import tyro

from dvaepp.cli.arguments import Debug, RunDir, argument


def models(debug: Debug = False) -> None:
    """List the trained models that come with dvaepp.

    Each with log p(x) of its test set. A command that takes a run takes one of these names too.

    Examples:
        dvaepp models
        dvaepp sample mnist-rbm
    """
    from dvaepp import pretrained

    width = max(map(len, pretrained.names()))
    for name in pretrained.names():
        print(f"{name:{width}}  {pretrained.in_words(name)}")


def export(
    run: tyro.conf.Positional[RunDir],
    out: Annotated[Path, argument("The folder to make.", "DIR")],
    debug: Debug = False,
) -> None:
    """Copy the best model of a run into a small folder to share.

    The folder has no optimizer and no chains, so that training cannot go on from it; all else takes it like a run.

    Examples:
        dvaepp export runs/demo --out demo-model
    """
    from dvaepp import runs

    folder = runs.export(run, out)
    size = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
    print(f"wrote {folder}, {size / 1e6:.1f} MB")


Repository = Annotated[str, argument("A model on the Hugging Face Hub, NAME/MODEL.", "REPO")]


def push(
    run: tyro.conf.Positional[RunDir],
    repo: tyro.conf.Positional[Repository],
    private: Annotated[bool, argument("Only you see a repository that is made now.")] = False,
    debug: Debug = False,
) -> None:
    """Put the best model of a run on the Hugging Face Hub.

    It goes there as safetensors and JSON, with a picture of samples and a model card that states the run's evaluation
    with its error bar. The repository is made if need be. Needs the extra `hub` and a token with write access
    ($HF_TOKEN, or `hf auth login`).

    Examples:
        dvaepp push runs/demo ada/demo-digits
        dvaepp push runs/demo ada/demo-digits --private
    """
    from dvaepp import hub

    print(f"pushed to {hub.push(run, repo, private=private)}")


def pull(
    repo: tyro.conf.Positional[Repository],
    run_dir: Annotated[Path | None, argument("The folder to make; default: runs/MODEL.", "DIR")] = None,
    debug: Debug = False,
) -> None:
    """Fetch a model from the Hugging Face Hub into a run directory.

    All digests and shapes are verified, nothing but safetensors, JSON, README.md and PNG is fetched, and the folder
    appears whole or not at all. Needs the extra `hub`.

    Examples:
        dvaepp pull ada/demo-digits
        dvaepp sample runs/demo-digits
    """
    from dvaepp import hub

    print(f"wrote {hub.pull(repo, run_dir)}")
