"""Codes in use: `encode`, `index`, `search`, `compress`, `decompress`."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import tyro

from dvaepp.cli.arguments import DataDir, Debug, Device, ImagesPath, Json, Limit, RunDir, Split, argument, npz_file
from dvaepp.errors import UsageError

if TYPE_CHECKING:
    from dvaepp.coding import SearchResult

Archive = Annotated[Path, argument("The file to write.", "FILE.npz")]


def encode(
    run: tyro.conf.Positional[RunDir],
    out: Archive = Path("bits.npz"),
    split: Split = "test",
    data_dir: DataDir = None,
    images: ImagesPath = None,
    device: Device = "cpu",
    debug: Debug = False,
) -> None:
    """Write the binary codes of images to a file.

    The file holds a bool array `bits` of shape (images, units), for `numpy.load`.

    Examples:
        dvaepp encode mnist-rbm --out bits.npz
        dvaepp encode runs/demo --images my-images --out bits.npz
    """
    from dvaepp import coding, runs
    from dvaepp.files import write_arrays

    npz_file(out)
    trained = runs.load(run, device=device)
    found = coding.chosen(trained, coding.Which(images, split, data_dir=data_dir))
    bits = coding.bits_of(trained, found.x)
    write_arrays(out, bits=bits)
    print(f"wrote {bits.shape[0]} codes of {bits.shape[1]} bits to {out}")


def index(
    run: tyro.conf.Positional[RunDir],
    out: Archive = Path("index.npz"),
    images: ImagesPath = None,
    split: Split = "train",
    limit: Limit = None,
    data_dir: DataDir = None,
    device: Device = "cpu",
    debug: Debug = False,
) -> None:
    """Pack the codes of images into a file for `dvaepp search`.

    Labels go along where the data set has them.

    Examples:
        dvaepp index runs/demo --out index.npz
    """
    from dvaepp import coding, runs
    from dvaepp.codes.index_file import write

    npz_file(out)
    trained = runs.load(run, device=device)
    made = coding.make_index(trained, coding.Which(images, split, limit, data_dir))
    write(out, made)
    print(f"wrote {len(made.index)} codes of {made.index.num_bits} bits to {out}")


def search(
    run: tyro.conf.Positional[RunDir],
    index: tyro.conf.Positional[Annotated[Path, argument("A file of `dvaepp index`.", "INDEX")]],
    images: ImagesPath = None,
    split: Split = "test",
    limit: Limit = None,
    k: Annotated[int, argument("Neighbours of each query.", "K")] = 10,
    rerank: Annotated[
        int, argument("Order the N nearest by posterior means and keep K; 0: by distance alone.", "N")
    ] = 0,
    threads: Annotated[int, argument("Threads that share the codes.", "N")] = 1,
    out: Annotated[Path | None, argument("Distances and indices as .npz, or queries and hits as .png.", "FILE")] = None,
    json: Json = False,
    data_dir: DataDir = None,
    device: Device = "cpu",
    debug: Debug = False,
) -> None:
    """Find the images of an index whose codes are nearest to those of queries.

    Precision and mAP are told where both have labels.

    Examples:
        dvaepp search runs/demo index.npz --limit 5 --out hits.png
        dvaepp search runs/demo index.npz --k 100 --rerank 200 --out hits.npz
    """
    from dvaepp import coding, runs
    from dvaepp.codes.index_file import read
    from dvaepp.files import write_arrays
    from dvaepp.reporting.images import save_grid

    if out is not None and out.suffix not in (".npz", ".png"):
        raise UsageError(f"{out} must end in .npz or .png")
    trained = runs.load(run, device=device)
    stored = read(index, memory_map=True)
    queries = coding.chosen(trained, coding.Which(images, split, limit, data_dir))
    found = coding.search(trained, stored, queries, k, threads, rerank)
    if out is not None and out.suffix == ".png":
        shown = coding.hits_beside_queries(trained, stored, queries.x, found.neighbours, data_dir)
        save_grid(shown, 1 + k, out)
    elif out is not None:
        write_arrays(out, **found.neighbours._asdict())
    _print_hits(found, json)


def _print_hits(found: "SearchResult", as_json: bool) -> None:
    from json import dumps

    from dvaepp.coding import SHOWN

    hits, quality = found
    if as_json:
        measured = None
        if quality is not None:
            measured = {
                "k": quality.k,
                "num_queries": quality.num_queries,
                "precision": quality.precision._asdict(),
                "mean_average_precision": quality.mean_average_precision._asdict(),
            }
        print(dumps({"distances": hits.distances.tolist(), "indices": hits.indices.tolist(), "quality": measured}))
        return
    print("query       index:distance of the images found, nearest first")
    for query, (distances, indices) in enumerate(zip(hits.distances[:SHOWN], hits.indices[:SHOWN], strict=True)):
        shown = "  ".join(f"{i}:{d:g}" for i, d in zip(indices.tolist(), distances.tolist(), strict=True))
        print(f"query {query:<5} {shown}")
    if len(hits.indices) > SHOWN:
        print(f"and {len(hits.indices) - SHOWN} more; --out FILE.npz writes all")
    if quality is not None:
        value, low, high = quality.precision
        mean, lowest, highest = quality.mean_average_precision
        print(
            f"precision@{quality.k} = {value:.4f} ({low:.4f} to {high:.4f}), mAP = {mean:.4f} ({lowest:.4f} to "
            f"{highest:.4f}), 95 % intervals over {quality.num_queries} queries"
        )


def compress(
    run: tyro.conf.Positional[RunDir],
    images: tyro.conf.Positional[
        Annotated[Path | None, argument("A folder of images or an array instead of a split.", "[PATH]")]
    ] = None,
    out: Annotated[Path, argument("The file to write.", "FILE")] = Path("images.dvaeppz"),
    split: Split = "test",
    limit: Limit = None,
    data_dir: DataDir = None,
    debug: Debug = False,
) -> None:
    """Compress binary images without loss.

    Bits-back coding with the run's model takes about as many bits as the bound says. Any machine with the same run gets
    the images back exactly, whatever its threads and kernels. Models with directed priors and with small Boltzmann
    priors can do it.

    Examples:
        dvaepp compress runs/directed --limit 1000 --out images.dvaeppz
    """
    from dvaepp import coding, runs
    from dvaepp.files import write_durably

    made, pixels = coding.compress(runs.load(run), coding.Which(images, split, limit, data_dir))
    write_durably(out, made.data)
    rate = 8 * len(made.data) / pixels if pixels else 0.0
    print(f"wrote {len(made.bits)} images in {len(made.data)} bytes, {rate:.4f} bits per pixel, to {out}")


def decompress(
    run: tyro.conf.Positional[RunDir],
    archive: tyro.conf.Positional[Annotated[Path, argument("What `dvaepp compress` wrote.", "FILE")]],
    out: Archive = Path("images.npz"),
    debug: Debug = False,
) -> None:
    """Get the images of a compressed file back.

    They are written as an array `images` (n, height, width). The run must be the one that compressed them.

    Examples:
        dvaepp decompress runs/directed images.dvaeppz --out images.npz
    """
    from dvaepp import coding, runs
    from dvaepp.files import write_arrays

    npz_file(out)
    found = coding.decompress(runs.load(run), archive)
    write_arrays(out, images=found[:, 0] if found.shape[1] == 1 else found)
    print(f"wrote {len(found)} images to {out}")
