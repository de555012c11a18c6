"""The Hub's own client, and what its failures mean in one line."""

import os
import re
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from dvaepp.errors import UsageError
from dvaepp.version import __version__

if TYPE_CHECKING:
    from huggingface_hub import HfApi


@contextmanager
def connected(repo: str, writes: bool = False) -> Iterator["HfApi"]:
    """The client of $HF_ENDPOINT, by default huggingface.co, with failures in words."""
    try:
        import huggingface_hub
    except ImportError:
        raise UsageError("the Hugging Face Hub needs the extra: pip install 'dvaepp[hub]'") from None
    if not re.fullmatch(r"\w[\w.-]*/\w[\w.-]*", repo, re.ASCII):
        raise UsageError(f"{repo!r} cannot be a repository: its name is NAME/MODEL, for example ada/mnist-rbm")
    if writes and huggingface_hub.get_token() is None:
        raise UsageError(
            "the Hub needs a token to write: make one with write access in the settings of your account there, then "
            "set HF_TOKEN to it, or run `hf auth login`"
        )
    endpoint = os.environ.get("HF_ENDPOINT", "").rstrip("/") or None
    api = huggingface_hub.HfApi(endpoint=endpoint, library_name="dvaepp", library_version=__version__)
    try:
        yield api
    except Exception as error:
        if told := _in_words(error, repo, api.endpoint):
            raise told from error
        raise


def commit(api: "HfApi", repo: str, add: Mapping[str, Path], delete: Sequence[str]) -> str:
    """One commit with all changes: nobody ever sees half of a model. Returns the address of the repository."""
    from huggingface_hub import CommitOperationAdd, CommitOperationDelete

    changes = [CommitOperationAdd(name, path) for name, path in add.items()]
    api.create_commit(
        repo, [*changes, *map(CommitOperationDelete, delete)], commit_message=f"Model of dvaepp {__version__}"
    )
    return f"{api.endpoint}/{repo}"


def download(api: "HfApi", repo: str, name: str, revision: str | None, folder: Path) -> Path:
    """One file of a repository, under its own name in `folder`, without the notes that the client makes there."""
    path = Path(api.hf_hub_download(repo, name, revision=revision, local_dir=folder))
    shutil.rmtree(folder / ".cache", ignore_errors=True)
    return path


def _in_words(error: Exception, repo: str, endpoint: str) -> Exception | None:
    from huggingface_hub import errors

    if isinstance(error, RuntimeError) and isinstance(error.__cause__, Exception):  # of an upload
        return _in_words(error.__cause__, repo, endpoint)
    reason = " ".join(str(error).split())[:200]
    if isinstance(error, errors.HFValidationError):
        return UsageError(f"{repo!r} cannot be a repository: {reason}")
    if isinstance(error, errors.RepositoryNotFoundError):
        return OSError(f"{endpoint} has no model {repo}, or hides it from you: check the name, and HF_TOKEN")
    if isinstance(error, errors.HfHubHTTPError) and error.response.status_code in (401, 403):
        return OSError(f"{endpoint} refuses your token for {repo}: use one with write access to it ({reason})")
    if isinstance(error, errors.HfHubHTTPError):
        return OSError(f"{endpoint} cannot do this with {repo}: {reason}")
    network = type(error).__module__.startswith("httpx") or isinstance(error, errors.LocalEntryNotFoundError)
    if network or isinstance(error, errors.OfflineModeIsEnabled):
        return OSError(f"{endpoint} cannot be reached: check the network and HF_ENDPOINT, then try again ({reason})")
    return None
