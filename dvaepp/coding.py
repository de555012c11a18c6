"""What the commands `index`, `search`, `compress` and `decompress` do with a run directory."""

import hashlib
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from dvaepp import runs
from dvaepp.codes import HammingIndex, Neighbours, archive
from dvaepp.codes.bits_back import Pixels
from dvaepp.codes.index_file import IndexFile
from dvaepp.codes.quantize import integer_model
from dvaepp.codes.retrieval import Quality, interval, precision_at_k, quality
from dvaepp.data import own, subset
from dvaepp.errors import UsageError
from dvaepp.evaluation.pieces import IMAGES_AT_ONCE
from dvaepp.progress import progress

ARCHIVE_LIMIT = 2**30  # bytes
SHOWN = 10  # queries that a terminal or a picture shows


class Chosen(NamedTuple):
    """Images as a model sees them, their labels where there are any, and where they can be read again."""

    x: Tensor
    labels: npt.NDArray[np.int64] | None
    source: dict[str, Any]


class Which(NamedTuple):
    """The images at a path, or those of a split of the run's data set; `limit` draws so many with a fixed seed."""

    path: Path | None = None
    split: str = "test"
    limit: int | None = None
    data_dir: Path | None = None


def chosen(trained: runs.Trained, which: Which) -> Chosen:
    """Read the images that `which` names; those at a path must have the shape that the model takes."""
    if which.path is not None:
        x = trained.recipe.data.read_images(which.path)
        if tuple(x.shape[1:]) not in (trained.model.image_shape, trained.model.sample_shape):
            raise UsageError(
                f"{which.path} holds images of shape {tuple(x.shape[1:])}, and the model takes "
                f"{tuple(trained.model.image_shape)} (channels, height, width)"
            )
        picked = subset(len(x), which.limit)
        return Chosen(x[picked], None, {"path": str(which.path.absolute()), "limit": which.limit})
    dataset = runs.dataset_of(trained.recipe, which.data_dir)
    picked = subset(len(dataset.split(which.split)), which.limit)
    labels = dataset.labels.get(which.split)
    found = None if labels is None else labels[picked].numpy().astype(np.int64)
    source = {"dataset": dataset.name, "split": which.split, "limit": which.limit}
    return Chosen(dataset.images(which.split, picked), found, source)


def make_index(trained: runs.Trained, which: Which) -> IndexFile:
    """The codes of images with what a search needs to know about them."""
    images = chosen(trained, which)
    bits = bits_of(trained, images.x)
    index = HammingIndex(bits.shape[1])
    index.add(bits)
    source = {**images.source, "pixels": _pixels_digest(images.x)}
    return IndexFile(index, images.labels, digest(trained.model), source)


def _pixels_digest(x: Tensor) -> str:
    """What tells whether the images of an index are still those at its source."""
    return hashlib.sha256(x.contiguous().numpy().tobytes()).hexdigest()


def bits_of(trained: runs.Trained, x: Tensor) -> npt.NDArray[np.bool_]:
    """The most likely code of every image, (images, units)."""
    return _in_pieces(x, trained.encode).bool().cpu().numpy()


def means_of(trained: runs.Trained, x: Tensor) -> npt.NDArray[np.float64]:
    """The posterior means of every image's units, (images, units)."""
    return _in_pieces(x, trained.code_means).double().cpu().numpy()


def _in_pieces(x: Tensor, function: Callable[[Tensor], Tensor]) -> Tensor:
    """A method of a model, applied to some images at a time."""
    return torch.cat([function(part) for part in x.split(IMAGES_AT_ONCE)])


class SearchResult(NamedTuple):
    """The neighbours of every query, and how good they are where queries and codes have labels."""

    neighbours: Neighbours
    quality: Quality | None


def search(
    trained: runs.Trained, stored: IndexFile, queries: Chosen, k: int, threads: int = 1, rerank: int = 0
) -> SearchResult:
    """The k nearest codes of each query by Hamming distance; or, of the `rerank` nearest, the k best by their means.

    Mean average precision is that of the ranking by Hamming distance, precision that of what is returned.
    """
    if stored.model != digest(trained.model):
        raise UsageError("the index holds codes of another model than this run's; make it anew with dvaepp index")
    if rerank and not k <= rerank <= len(stored.index):
        raise UsageError(f"rerank must be from k = {k} to the {len(stored.index)} codes of the index, got {rerank}")
    bits = bits_of(trained, queries.x)
    found = stored.index.search(bits, rerank or k, threads)
    if rerank:
        found = stored.index.rerank(means_of(trained, queries.x), found.indices, k)
    if stored.labels is None or queries.labels is None:
        return SearchResult(found, None)

    def ranking(part: slice) -> npt.NDArray[np.int64]:
        return stored.index.search(bits[part], len(stored.index), threads).indices

    whole = quality(ranking, stored.labels, queries.labels, k)
    right = stored.labels[found.indices] == queries.labels[:, None]
    return SearchResult(found, whole._replace(precision=interval(precision_at_k(right, k))))


def hits_beside_queries(
    trained: runs.Trained, stored: IndexFile, queries: Tensor, hits: Neighbours, data_dir: Path | None = None
) -> Tensor:
    """For a picture, each of the first queries and then its hits; the stored images are read again."""
    source = stored.source
    path = None if "path" not in source else Path(source["path"])
    images = chosen(trained, Which(path, source.get("split", "test"), source["limit"], data_dir)).x
    if len(images) != len(stored.index) or source.get("pixels") != _pixels_digest(images):
        place = path or f"the {source['split']} split of {source['dataset']}"
        raise OSError(f"{place} does not hold the images that the index was made of any more; make the index anew")
    rows = torch.from_numpy(hits.indices[:SHOWN])
    return trained.shown(torch.cat([queries[:SHOWN, None], images[rows]], 1).flatten(0, 1))


def compress(trained: runs.Trained, which: Which) -> tuple[archive.Archive, int]:
    """An archive of binary images, and how many pixels it holds."""
    model = integer_model(trained.model)  # refuses before images are read
    images = _binary(trained, which)
    if images.ndim == 2 and images.shape[1] == math.prod(model.image_shape):  # data of rows, not of pictures
        images = images.reshape(len(images), *model.image_shape)
    with progress("compressing", len(images)) as advance:
        return archive.compress(model, images, advance), images.size


def _binary(trained: runs.Trained, which: Which) -> Pixels:
    if which.path is None:
        x = chosen(trained, which).x
    else:
        x = own.read_binary(which.path)
        x = x[subset(len(x), which.limit)]
    if not bool(((x == 0) | (x == 1)).all()):
        raise UsageError("images must be of zeros and ones: what is grey or coloured would not come back")
    return x.to(torch.uint8).numpy()


def decompress(trained: runs.Trained, path: Path) -> Pixels:
    """The images of an archive, (n, channels, height, width)."""
    if not path.is_file():
        raise UsageError(f"{path} is no file; dvaepp compress makes one")
    if path.stat().st_size > ARCHIVE_LIMIT:
        raise archive.Damaged(f"{path} has more than {ARCHIVE_LIMIT} bytes, which no archive of ours has")
    try:
        coded = archive.read(integer_model(trained.model), path.read_bytes())
        with progress("decompressing", coded.shape[0]) as advance:
            return archive.decoded(coded, advance)
    except archive.Damaged as error:
        raise archive.Damaged(f"{path} cannot be decompressed: {error}") from None


def digest(model: nn.Module) -> str:
    """A sha256 over the names and values of a model's tensors: codes of two models do not mix."""
    found = hashlib.sha256()
    for name, value in sorted(model.state_dict().items()):
        found.update(f"{name}{tuple(value.shape)}".encode())
        found.update(value.detach().cpu().contiguous().numpy().tobytes())
    return found.hexdigest()
