"""Where the files are: look-up, verification, download.

A file is looked for in the given folder, in $DVAEPP_DATA, in the user cache; the first folder that holds any form of
it decides, and an altered file there is an error, never a reason to look further. What is nowhere is downloaded into
the cache under a temporary name and renamed once its checksum is right.
"""

import hashlib
import importlib.util
import os
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from dvaepp.data import packed
from dvaepp.data.base import DataError, File, NoNetwork
from dvaepp.errors import UsageError
from dvaepp.files import expanded, sync
from dvaepp.progress import progress

DOWNLOAD_LIMIT = 512 * 2**20  # bytes; CIFAR10's archive has 170 MB
OFFLINE = "without a network `dvaepp train demo` works, and so do images of your own (--set data.path=FOLDER)"
TIMEOUT = 30.0  # seconds without an answer from a server
CHUNK = 2**18


class Found(NamedTuple):
    """A form of a file, where it lies, and the data folder it was found in."""

    form: File
    path: Path
    root: Path


def cache_dir() -> Path:
    """The user's cache: $XDG_CACHE_HOME or ~/.cache, then dvaepp/data."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "dvaepp" / "data"


def folders(data_dir: Path | str | None) -> list[Path]:
    """The data folders in the order of look-up."""
    given = [data_dir, os.environ.get("DVAEPP_DATA"), cache_dir()]
    return [expanded(folder) for folder in given if folder]


def held(file: File, roots: list[Path]) -> list[Found]:
    """The forms of `file` in the first folder that holds any, by its path there or by its bare name."""
    for stand_in in (False, True):
        for root in roots:
            forms = [form for form in file.forms if form.stand_in == stand_in]
            paths = [(form, path) for form in forms for path in (root / form.path, root / Path(form.path).name)]
            found = [Found(form, path, root) for form, path in paths if path.is_file()]
            if found:
                return found
    if file.package:
        path = _in_package(file)
        return [Found(file, path, path.parent)]
    return []


def intact(found: list[Found]) -> Found | None:
    """The first form whose checksum is right, if any."""
    return next((item for item in found if _digest(item.path, item.form.digest) == item.form.digest), None)


def verified(name: str, found: list[Found]) -> Found:
    """The first form whose checksum is right; otherwise the error names the first form."""
    item = intact(found)
    if item is not None:
        return item
    first = found[0]
    actual = _digest(first.path, first.form.digest)
    raise DataError(
        f"{first.path} is altered or truncated: expected {first.form.digest}, found {actual}; "
        f"`dvaepp data fetch {name}` gets a good copy"
    )


def unreadable(name: str, found: list[Found], error: Exception) -> DataError:
    """The error for files that are as published, or unchecked, and still cannot be parsed."""
    paths = ", ".join(str(path) for path in dict.fromkeys(item.path for item in found))
    package = found[0].form.package.partition("/")[0]
    remedy = f"pip install --force-reinstall {package}" if package else f"dvaepp data fetch {name}"
    return DataError(f"{paths} cannot be read: {reason(error)}; `{remedy}` gets a good copy")


def reason(error: Exception) -> str:
    """What a parser says, in one line."""
    return " ".join(str(error).split())[:300] or type(error).__name__


@contextmanager
def permitted() -> Iterator[None]:
    """Tell of a file or folder that the system does not let us read."""
    try:
        yield
    except DataError:
        raise
    except OSError as error:
        remedy = "make it readable, or give another folder"
        raise DataError(f"{error.filename} cannot be read: {error.strerror or error}; {remedy}") from None


def missing(name: str, file: File, roots: list[Path], reason: str = "") -> DataError:
    """The error for a file that is in none of the folders and could not be downloaded."""
    looked = ", ".join(str(root) for root in roots)
    return DataError(
        f"{file.path} is missing: expected {file.digest}, found no file in {looked}"
        f"{reason and f' ({reason})'}; `dvaepp data fetch {name}` downloads it, or put it where $DVAEPP_DATA points"
    )


def download(name: str, file: File, root: Path, roots: list[Path]) -> Found:
    """Download the first form of `file` that any of its mirrors serves unaltered, into `root`."""
    failures, answered = [], False
    for form in file.forms:
        for url in form.urls:
            try:
                return Found(form, _download(url, form, root), root)
            except (OSError, ValueError) as error:  # a Content-Length that is no number is a ValueError
                failures.append(f"{url}: {_brief(error)}")
                answered |= not _unreachable(error)
    told = missing(name, file, roots, "; ".join(failures) or "no mirror is known")
    raise told if answered or not failures else NoNetwork(f"no network: {told}; {OFFLINE}")


def _unreachable(error: Exception) -> bool:
    """Whether no server was reached at all. A server that refuses our encryption was reached."""
    from requests import exceptions

    nobody = (exceptions.ConnectionError, exceptions.Timeout, ConnectionError, TimeoutError)
    return isinstance(error, nobody) and not isinstance(error, exceptions.SSLError)


def contents(found: list[Found]) -> list[bytes]:
    """The decompressed bytes of each file; an archive is read once, and only the members asked for."""
    inside: dict[Path, dict[str, bytes]] = {}
    for item in found:
        if item.form.member and item.path not in inside:
            wanted = {other.form.member for other in found if other.path == item.path}
            inside[item.path] = packed.members(item.path, wanted)
    return [inside[item.path][item.form.member] if item.form.member else packed.unpacked(item.path) for item in found]


def checksum(found: list[Found]) -> str:
    """sha256 over the sha256 (hexadecimal) of the files, each once, in order of reading."""
    digests = [_digest(path, "sha256:").removeprefix("sha256:") for path in dict.fromkeys(item.path for item in found)]
    return hashlib.sha256("".join(digests).encode()).hexdigest()


def forget() -> None:
    """Hash every file again when it is next asked for."""
    _digests.clear()


_digests: dict[tuple[str, int, int, str], str] = {}


def _digest(path: Path, like: str) -> str:
    """The digest of a file by the algorithm `like` names; remembered while size and time of change stay the same."""
    algorithm, separator, _ = like.partition(":")
    if not separator:
        return ""
    status = path.stat()
    key = (str(path.resolve()), status.st_size, status.st_mtime_ns, algorithm)
    if key not in _digests:
        with path.open("rb") as file:
            _digests[key] = f"{algorithm}:{hashlib.file_digest(file, algorithm).hexdigest()}"
    return _digests[key]


def _in_package(file: File) -> Path:
    """The path of a file that an installed package carries, without importing the package."""
    package, _, inside = file.package.partition("/")
    spec = importlib.util.find_spec(package)
    for folder in (spec.submodule_search_locations if spec else None) or []:
        if (Path(folder) / inside).is_file():
            return Path(folder) / inside
    raise UsageError(f"{file.path} comes with {package}, which is not installed: pip install 'dvaepp[{file.extra}]'")


def _download(url: str, form: File, root: Path) -> Path:
    import requests

    target = root / form.path
    root.mkdir(parents=True, exist_ok=True)
    # Some servers announce .gz files as gzip-encoded, and requests would unpack them: ask for the bytes as stored.
    as_stored = {"Accept-Encoding": "identity"}
    with tempfile.TemporaryDirectory(prefix=".fetch-", dir=root) as folder:
        part = Path(folder) / "part"
        with requests.get(url, headers=as_stored, timeout=TIMEOUT, stream=True) as answer:
            answer.raise_for_status()
            _save(answer.iter_content(CHUNK), part, target.name, int(answer.headers.get("Content-Length", 0)))
        actual = _digest(part, form.digest)
        if actual != form.digest:
            raise DataError(f"expected {form.digest}, found {actual}")
        target.parent.mkdir(parents=True, exist_ok=True)
        sync(part)
        os.replace(part, target)
        sync(target.parent)
    return target


def _save(pieces: Iterable[bytes], path: Path, name: str, announced: int) -> None:
    """Write what a server sends, up to the limit, whatever size it announced."""
    done = 0
    with path.open("wb") as file, progress(name, announced) as advance:
        for piece in pieces:
            done += len(piece)
            if done > DOWNLOAD_LIMIT:
                raise DataError(f"it serves more than {DOWNLOAD_LIMIT} bytes")
            file.write(piece)
            advance(len(piece))


def _brief(error: Exception) -> str:
    """An error in a short line: of what requests writes in 300 letters the name of the error says as much."""
    text = " ".join(str(error).split()).partition(" for url")[0]
    return text if isinstance(error, DataError) or len(text) < 120 else type(error).__name__
