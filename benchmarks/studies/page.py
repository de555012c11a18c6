"""Write what the studies measured into the pages about codes, and their plots: `python -m benchmarks.studies.page`."""

from pathlib import Path
from typing import Any

from benchmarks.page import origin, table
from benchmarks.record import ROOT
from benchmarks.studies import plots
from benchmarks.studies.record import FOLDER, NAMES, read

START, END = "<!-- measured: python -m benchmarks.studies.page -->", "<!-- end -->"
PAGES = {"retrieval": "codes_search.md", "compression": "codes_compression.md", "quantizer": "quantizer.md"}
PAPER_STEPS = 10**6  # of Table 2
Record = dict[str, Any]


def page(name: str, folder: Path = FOLDER) -> str:
    """The page of a study with the part between its marks renewed."""
    before, rest = path_of(name).read_text().split(START)
    return f"{before}{START}\n\n{measured(name, folder)}\n\n{END}{rest.split(END, 1)[1]}"


def path_of(name: str) -> Path:
    return ROOT / "docs" / PAGES[name]


def measured(name: str, folder: Path = FOLDER) -> str:
    record = read(name, folder)
    if record is None:
        return f"No record yet: `python -m benchmarks.studies.{name} --out benchmarks/records/studies/{name}.json`."
    text = {"retrieval": retrieval, "compression": compression, "quantizer": quantizer}[name](record)
    return f"{text}\n\nMeasured {origin(record)}."


def retrieval(record: Record) -> str:
    settings, k = record["settings"], record["k"]
    bits = settings["bits"]
    head = (
        f"{settings['dataset']}: {settings['queries']} test images ask the training set; models were trained for "
        f"{_schedule(settings)}. precision@{k} with its 95 % interval over queries:"
    )
    precision = table([_line(record["rows"], method, bits, "precision") for method in _methods(record["rows"])])
    ranked = [m for m in _methods(record["rows"]) if not m.endswith("reranked")]
    average = table([_line(record["rows"], method, bits, "mean_average_precision") for method in ranked])
    by_average = _by_average(record["rows"], bits)
    verdicts = "\n".join(_verdict(record["rows"], length) for length in bits)
    picture = f"![precision@{k} by bits](images/codes-retrieval.png)"
    return f"{head}\n\n{precision}\n\n{verdicts}\n\n{by_average}\n\n{average}\n\n{picture}"


def _schedule(settings: Record) -> str:
    return f"{settings['steps']} steps, {settings['steps'] / PAPER_STEPS:.0%} of the paper's schedule"


def _methods(rows: list[Record]) -> list[str]:
    return list(dict.fromkeys(row["method"] for row in rows))


def _line(rows: list[Record], method: str, bits: list[int], measure: str) -> Record:
    found = {row["bits"]: row[measure] for row in rows if row["method"] == method}
    return {"method": method} | {f"{length} bits": _interval(found.get(length, found.get(None))) for length in bits}


def _interval(value: dict[str, float] | None) -> str:
    return "" if value is None else f"{value['value']:.3f} ({value['low']:.3f} to {value['high']:.3f})"


def _verdict(rows: list[Record], bits: int) -> str:
    """Who is best at one length. All answer the same queries: the interval of the difference tells two apart."""
    of_length = [row for row in rows if row["bits"] == bits]
    model = _best([row for row in of_length if row["method"].startswith("table2")])
    plain = _best([row for row in of_length if row["method"].endswith("codes")])
    linear = _best([row for row in of_length if not row["method"].startswith("table2")])["method"]
    directed = next(row for row in of_length if row["method"] == "table2.marginal, codes")
    return (
        f"- {bits} bits: {model['method']}, the best of the models, is {_beside(model, linear)} {linear}, the best "
        f"linear hash, and {_beside(model, 'raw pixels')} raw pixels, at a bit each. Without reranking the best "
        f"is {plain['method']}, {_beside(plain, linear)} {linear}. Of the two priors the directed one is "
        f"{_beside(directed, 'table2.rbm, codes')} the RBM."
    )


def _by_average(rows: list[Record], bits: list[int]) -> str:
    ranked = [row for row in rows if row["mean_average_precision"] is not None]
    best = {n: max((row for row in ranked if row["bits"] == n), key=_average)["method"] for n in bits}
    named = ", ".join(f"{method} at {length} bits" for length, method in best.items())
    return f"Mean average precision judges the order of the whole database. By it the best codes are {named}:"


def _average(row: Record) -> float:
    return float(row["mean_average_precision"]["value"])


def _best(rows: list[Record]) -> Record:
    return max(rows, key=lambda row: row["precision"]["value"])


def _beside(row: Record, other: str) -> str:
    value, low, high = (row["ahead of"][other][key] for key in ("value", "low", "high"))
    if low <= 0 <= high:
        return f"not to be told from ({value:+.3f}, from {low:+.3f} to {high:+.3f})"
    return f"{'ahead of' if low > 0 else 'behind'} ({value:+.3f}, from {low:+.3f} to {high:+.3f})"


def compression(record: Record) -> str:
    rate, settings = record["bits per pixel, file"], record["settings"]
    others = {name: value for name, value in record["others, bits per pixel"].items() if isinstance(value, float)}
    missing = {name: why for name, why in record["others, bits per pixel"].items() if isinstance(why, str)}
    lines = sorted({"this library, whole file": rate, **others}.items(), key=lambda each: each[1])
    rows = [
        {"compressor": name, "bits per pixel": f"{value:.4f}", "size beside ours": f"{value / rate:.2f}"}
        for name, value in lines
    ]
    exact = record["exact"] and record["two threads with kernels to one without, exact"]
    late = record["bits per pixel after the first 50"]
    came_back = "every pixel came back" if exact else "PIXELS DIFFER"
    text = (
        f"{record['images']} test images of static MNIST; table2.marginal, {settings['layers']} nonlinear layers, "
        f"trained for {_schedule(settings)}. Compressed with two threads and kernels, decompressed with one thread and "
        f"without: {came_back}. After the first 50 images the net rate is {late:.4f} bits per pixel (standard error "
        f"{record['its standard error']:.4f}), {record['rate / bound']:.4f} of the one-sample bound in the binary "
        f"limit, {record['bound, bits per pixel']:.4f}. The file counts its header, its checksum and the bits borrowed "
        "by the first image, the others' files theirs; the model itself is counted nowhere."
    )
    absent = "".join(f"\n\n{name}: {why}." for name, why in missing.items())
    return f"{text}\n\n{table(rows)}\n\n{_smallest(lines)}{absent}"


def _smallest(lines: list[tuple[str, float]]) -> str:
    (first, least), (second, next_) = lines[:2]
    return f"Smallest: {first}, {1 - least / next_:.0%} below {second}."


def quantizer(record: Record) -> str:
    settings = record["settings"]
    finished = {name: each for name, each in record["summary"].items() if isinstance(each, dict)}
    rows = [
        {"quantiser": name, "mean squared error": _spread(each["mse"], 5), "PSNR in dB": _spread(each["psnr"], 2)}
        | {"code entropy in bits": _spread(each["code entropy"], 2)}
        for name, each in finished.items()
    ]
    failed = "".join(f"\n\n{name}: {why}" for name, why in record["summary"].items() if name not in finished)
    text = (
        f"CIFAR10, {settings['epochs']} epochs, {settings['bits']} bits at each of 8 x 8 sites, test images; "
        f"{_seeds(min(len(histories) for histories in record['histories'].values()))}:"
    )
    picture = "![Error and entropy of codes by epoch](images/codes-quantizer.png)"
    return f"{text}\n\n{table(rows)}\n\n{_winners(finished, settings['bits'])}{failed}\n\n{picture}"


def _seeds(count: int) -> str:
    """A study that goes on has the seeds that are done."""
    return f"mean ± deviation of {count} seeds" if count > 1 else "one seed, so that nothing is known of the spread"


def _spread(value: dict[str, float | None], digits: int) -> str:
    return f"{value['mean']:.{digits}f}" + (f" ± {value['sd']:.{digits}f}" if value["sd"] is not None else "")


def _winners(summary: Record, bits: int) -> str:
    """Quantisers by their error, and who uses most of the codes; a difference within two deviations is called open."""
    order = sorted(summary, key=lambda name: summary[name]["psnr"]["mean"], reverse=True)
    pairs = zip(order[:-1], order[1:], strict=True)
    steps = [f"{one} is {_ahead(summary[one]['psnr'], summary[two]['psnr'])} {two}" for one, two in pairs]
    entropy = max(summary, key=lambda name: summary[name]["code entropy"]["mean"])
    return f"By PSNR {'; '.join(steps)}. {entropy} uses most of the {bits} bits of a site."


def _ahead(one: Record, other: Record) -> str:
    gap = one["mean"] - other["mean"]
    if one["sd"] is None or other["sd"] is None:
        return f"{gap:.2f} dB, of unknown spread, ahead of"
    noise = (one["sd"] ** 2 + other["sd"] ** 2) ** 0.5
    return f"{gap:.2f} dB ahead of" if gap > 2 * noise else "not clearly ahead of"


if __name__ == "__main__":
    for each in NAMES:
        path_of(each).write_text(page(each))
    plots.draw()
    print(f"wrote {', '.join(str(path_of(each).relative_to(ROOT)) for each in NAMES)}")
