"""Data sets: one file holds one, found by looking. The file's stem is the name.

It has `FILES`, the `SHAPE` of an image, the `SIZES` of the training, validation and test sets, and `read(found)`.
"""

import difflib
import importlib
import pkgutil
from dataclasses import replace
from pathlib import Path
from types import ModuleType

from dvaepp.data import store
from dvaepp.data.base import DataError, Dataset, File, Likelihood, NoNetwork, subset
from dvaepp.data.memory import Source, as_dataset
from dvaepp.data.parts import Options
from dvaepp.errors import UsageError
from dvaepp.files import expanded

__all__ = [
    "DataError",
    "Dataset",
    "File",
    "NoNetwork",
    "Source",
    "as_dataset",
    "check",
    "describe",
    "fetch",
    "files",
    "here",
    "image_shape",
    "load",
    "names",
    "obtain",
    "sizes",
    "stand_in",
    "subset",
]


def names() -> list[str]:
    """The data sets that can be loaded by name.

    Choose it to see what `load` and `data.name` of a recipe take.

    >>> "mnist_static" in names()
    True
    """
    return sorted(_members())


def describe(name: str) -> str:
    """One line on a data set: the first of its file.

    Choose it for a line to show beside a name.

    >>> describe("cifar10")
    'CIFAR-10 (Krizhevsky 2009), 32x32 colour; validation = last 5000 of train.'
    """
    return (_member(name).__doc__ or "").partition("\n")[0]


def image_shape(name: str) -> tuple[int, int, int]:
    """Channels, height and width of a data set's images, without reading them.

    Choose it to build a model before the data is there.

    >>> image_shape("cifar10")
    (3, 32, 32)
    """
    return _member(name).SHAPE


def files(name: str) -> list[File]:
    """The files of a data set, each with the forms that it may lie in.

    Choose it to see what would be downloaded, and from where.

    >>> [file.path for file in files("demo")]
    ['demo/mnist_5k.csv.gz']
    """
    return _member(name).FILES


def sizes(name: str) -> tuple[int, int, int]:
    """Training, validation and test images of a data set, without reading them.

    Choose it to plan steps before the data is there.

    >>> sizes("cifar10")
    (45000, 5000, 10000)
    """
    return _member(name).SIZES


def load(
    name: str,
    data_dir: Path | str | None = None,
    path: Path | str | None = None,
    *,
    likelihood: Likelihood = "bernoulli",
    resize: int | str | tuple[int, int] | None = None,
    white: float | int | None = None,
) -> Dataset:
    """Load a data set by name, downloading what is missing; or, with `path`, images of one's own under that name.

    The other arguments say how images of one's own are read; `as_dataset` explains them.

    Choose it for the data sets of the library; `as_dataset` takes data that is in memory.

    >>> load("demo")
    Dataset('demo', bernoulli, images (1, 28, 28), split 4000/500/500)
    """
    if path is not None:
        from dvaepp.data import own

        called = Path(path).stem if name in names() else name
        return own.load(expanded(path), called, Options.of(likelihood, resize, white))
    found = obtain(name, data_dir)
    try:
        dataset: Dataset = _member(name).read(found)
        dataset.check()
    except (DataError, UsageError):
        raise
    except Exception as error:  # parsers and unpackers fail in many ways on files that are not what they should be
        raise store.unreadable(name, found, error) from error
    return replace(dataset, checksum=store.checksum(found))


def obtain(name: str, data_dir: Path | str | None = None) -> list[store.Found]:
    """The verified files of a data set, where they lie or downloaded into the cache; nothing is read of them yet.

    Choose it to download and verify without reading.

    >>> len(obtain("demo"))
    1
    """
    roots = store.folders(data_dir)
    found = []
    with store.permitted():
        for file in files(name):
            held = store.held(file, roots)
            found.append(
                store.verified(name, held) if held else store.download(name, file, root=store.cache_dir(), roots=roots)
            )
    return found


def here(name: str, data_dir: Path | str | None = None) -> bool:
    """Whether all files of a data set lie in the data folders, intact or not: `load` would download nothing.

    Choose it to know beforehand whether `load` needs a network.

    >>> here("demo")
    True
    """
    roots = store.folders(data_dir)
    with store.permitted():
        return all(store.held(file, roots) for file in files(name))


def stand_in(name: str, data_dir: Path | str | None = None) -> bool:
    """Whether what lies here is a stand-in: other pixels than the published file's.

    Choose it before results are compared with published ones.

    >>> stand_in("demo")
    False
    """
    roots = store.folders(data_dir)
    with store.permitted():
        return any(item.form.stand_in for file in files(name) for item in store.held(file, roots))


def fetch(name: str, data_dir: Path | str | None = None) -> list[Path]:
    """Download what is missing, altered or only there as a stand-in, into `data_dir` or the cache; return the paths.

    An altered file is mended in the folder it lies in, since that folder would be asked first.

    Choose it to prepare a machine that will have no network.

    >>> [path.name for path in fetch("demo")]
    ['mnist_5k.csv.gz']
    """
    roots = store.folders(data_dir)
    target = roots[0] if data_dir else store.cache_dir()
    paths = []
    with store.permitted():
        for file in files(name):
            held = [item for item in store.held(file, roots) if not item.form.stand_in]
            root = held[0].root if held else target
            paths.append((store.intact(held) or store.download(name, file, root, roots)).path)
    return list(dict.fromkeys(paths))


def check(name: str, data_dir: Path | str | None = None) -> list[Path]:
    """Verify the files of a data set where they lie, hashing each again; return their paths. Downloads nothing.

    Choose it where files may have been damaged since they were downloaded.

    >>> [path.name for path in check("demo")]
    ['mnist_5k.csv.gz']
    """
    roots = store.folders(data_dir)
    store.forget()
    paths = []
    with store.permitted():
        for file in files(name):
            held = store.held(file, roots)
            if not held:
                raise store.missing(name, file, roots)
            paths.append(store.verified(name, held).path)
    return list(dict.fromkeys(paths))


def _members() -> dict[str, ModuleType]:
    modules = {info.name: importlib.import_module(f"{__name__}.{info.name}") for info in pkgutil.iter_modules(__path__)}
    return {name: module for name, module in modules.items() if hasattr(module, "FILES") and hasattr(module, "read")}


def _member(name: str) -> ModuleType:
    members = _members()
    if name not in members:
        near = difflib.get_close_matches(name[:100], members, n=3, cutoff=0.5)
        hint = f"did you mean {', '.join(near)}?" if near else f"there are {', '.join(sorted(members))}"
        raise UsageError(f"unknown data set {name[:40]!r}; {hint}")
    return members[name]
