"""Exact Hamming search among a million codes, ten nearest: ms per query beside faiss's IndexBinaryFlat and NumPy.

Ours is the public `HammingIndex.search`, packing of the queries included. All of them must find the same distances.
"""

import hashlib
from typing import Any

import numpy as np

from benchmarks import peers
from benchmarks.timing import seconds
from dvaepp.codes import HammingIndex
from dvaepp.codes.packing import pack
from dvaepp.kernels import hamming

CODES = 1_000_000
NEIGHBOURS = 10
BITS = (64, 256)
QUERIES = (1, 100)  # at a time
CHECKED = 20  # queries that are compared with brute force


def run() -> dict[str, Any]:
    rows = [
        row for bits in BITS for queries in QUERIES for threads in (1, 2) for row in compare(bits, queries, threads)
    ]
    return {"codes": CODES, "neighbours": NEIGHBOURS, "peers": peers.status(), "rows": rows}


def codes_and_queries(bits: int, queries: int, codes: int = CODES) -> tuple[Any, Any]:
    """Random bits from one seed; the peer's script makes the same."""
    random = np.random.default_rng(0)
    return random.random((codes, bits), np.float32) < 0.5, random.random((queries, bits), np.float32) < 0.5


def compare(bits: int, queries: int, threads: int) -> list[dict[str, Any]]:
    codes, asked = codes_and_queries(bits, queries)
    index = HammingIndex(bits)
    index.add(codes)
    words, packed = index.words, pack(asked)
    few = packed[:CHECKED]
    contestants = {"dvaepp": lambda: index.search(asked, NEIGHBOURS, threads)}
    if threads == 1:
        contestants["NumPy"] = lambda: hamming.plain(words, few, NEIGHBOURS)  # type: ignore[assignment,return-value]
    times = seconds(contestants, threads=threads, rounds=9, turn=0.2)
    found = index.search(asked, NEIGHBOURS, threads).distances
    equal = bool(np.array_equal(found[:CHECKED], _brute(codes, asked[:CHECKED])))
    arguments = ("--bits", bits, "--queries", queries, "--threads", threads, "--codes", CODES, "--k", NEIGHBOURS)
    peer = peers.measure("faiss_search.py", "faiss-cpu", *arguments)
    same = None if "sha256" not in peer else peer["sha256"] == _digest(found)
    measured = {
        "dvaepp": (times["dvaepp"] / queries, equal),
        "NumPy": (times["NumPy"] / len(few), equal) if "NumPy" in times else None,
        f"faiss-cpu {peer.get('version', peer.get('error'))}": (peer["seconds"] / queries, same)
        if same is not None
        else None,
    }
    return [
        {
            "bits": bits,
            "queries at a time": queries,
            "threads": threads,
            "search": name,
            "ms per query": value[0] * 1e3 if value else None,
            "ours is faster by": value[0] / (times["dvaepp"] / queries) if value else None,
            "distances equal": value[1] if value else None,
        }
        for name, value in measured.items()
        if value or "faiss" in name
    ]


def _brute(codes: Any, asked: Any) -> Any:
    """Distances by comparing every bit, a query at a time, and a full sort."""
    return np.array([np.sort((codes != query).sum(1))[:NEIGHBOURS] for query in asked])


def _digest(distances: Any) -> str:
    return hashlib.sha256(np.ascontiguousarray(distances, "<i8").tobytes()).hexdigest()
