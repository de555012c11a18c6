"""Models on the Hugging Face Hub: `push` makes a repository of a run's model, `pull` makes a run of a repository.

A repository holds what `dvaepp export` writes, safetensors and JSON, with a picture of samples and a model card that is
made from the evaluation. Nothing else goes there, and nothing else is taken from there: `files.py` names what may be.
"""

import tempfile
from pathlib import Path

from dvaepp import pretrained, runs
from dvaepp.errors import UsageError, to_stderr
from dvaepp.files import appearing, write_durably
from dvaepp.hub import client, files
from dvaepp.hub.card import card
from dvaepp.hub.samples import write_samples

__all__ = ["pull", "push"]


def push(run: Path | str, repo: str, *, private: bool = False) -> str:
    """Put the best model of a run, or a shipped one, into a repository "NAME/MODEL", made if need be; its address.

    All files go in one commit, which also removes those of a model that was there before. The recipe goes along without
    the path of one's own images, because everybody can read it. Needs the extra `hub` and a token with write access.

    Choose it to share a model, with a model card that states its evaluation:

        address = dvaepp.hub.push("runs/demo", "ada/demo-digits")
    """
    with tempfile.TemporaryDirectory() as scratch, client.connected(repo, writes=True) as api:
        folder = Path(scratch) / "model"
        # lines name the run in place of the temporary folder, which nobody will find
        runs.export(run, folder, keep_path=False, say=lambda line: to_stderr(line.replace(str(folder), str(run))))
        write_samples(pretrained.folder(run), folder)
        write_durably(folder / "README.md", card(folder, repo).encode())
        api.create_repo(repo, private=private or None, exist_ok=True)
        there = api.model_info(repo).siblings or []
        old = files.known([each.rfilename for each in there], repo)
        new = {path.relative_to(folder).as_posix(): path for path in sorted(folder.rglob("*")) if path.is_file()}
        return client.commit(api, repo, add=new, delete=sorted(set(old) - set(new)))


def pull(repo: str, run_dir: Path | str | None = None) -> Path:
    """Fetch a repository's model into a new folder, by default runs/MODEL, that loads like any run.

    Every file is held against the digest that the Hub states, the model against the digests and shapes of its
    checkpoint, and the evaluation against the model. A folder appears only where all of that holds.

    Choose it to use a model that was shared; loading needs no network any more:

        model = dvaepp.load(dvaepp.hub.pull("ada/demo-digits"))
    """
    target = Path("runs") / repo.rpartition("/")[2] if run_dir is None else Path(run_dir)
    if target.exists():
        raise UsageError(f"{target} is there already: choose another folder with --run-dir")
    with client.connected(repo) as api:
        info = api.model_info(repo, files_metadata=True)
        wanted = files.complete(info.siblings or [], repo)
        with appearing(target) as partial:
            for listed in wanted:
                files.check(client.download(api, repo, listed.rfilename, info.sha, partial), listed)
            files.check_model(partial, repo)
    return target
