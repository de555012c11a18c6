"""Time faiss's exact search among binary codes, `IndexBinaryFlat`; one JSON object on stdout.

Codes and queries are the random bits of `benchmarks/search.py`, from the same seed; the digest of the distances found
tells whether both searches agree.
"""

import argparse
import contextlib
import hashlib
import json
import statistics
import sys
import time
from importlib.metadata import version
from typing import Any

PEER = "faiss-cpu"
ROUNDS = 9


def measure(bits: int, queries: int, threads: int, codes: int, k: int) -> dict[str, Any]:
    """Median seconds of a search for all queries."""
    import faiss  # type: ignore[import-not-found]
    import numpy as np

    faiss.omp_set_num_threads(threads)
    random = np.random.default_rng(0)
    stored = np.packbits(random.random((codes, bits), np.float32) < 0.5, axis=1, bitorder="little")
    asked = np.packbits(random.random((queries, bits), np.float32) < 0.5, axis=1, bitorder="little")
    index = faiss.IndexBinaryFlat(bits)
    index.add(stored)
    distances, _ = index.search(asked, k)
    times = []
    for _ in range(ROUNDS):
        start = time.perf_counter()
        index.search(asked, k)
        times.append(time.perf_counter() - start)
    digest = hashlib.sha256(np.ascontiguousarray(distances, "<i8").tobytes()).hexdigest()
    call = "faiss.IndexBinaryFlat(bits).search(queries, k)"
    return {"peer": PEER, "version": version(PEER), "seconds": statistics.median(times), "sha256": digest, "call": call}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in ("bits", "queries", "threads", "codes", "k"):
        parser.add_argument(f"--{name}", type=int, required=True)
    arguments = parser.parse_args()
    try:
        with contextlib.redirect_stdout(sys.stderr):  # stdout carries the JSON alone
            result = measure(**vars(arguments))
    except Exception as error:
        result = {"peer": PEER, "error": " ".join(f"{type(error).__name__}: {error}".split())}
    print(json.dumps(result))


if __name__ == "__main__":
    main()
