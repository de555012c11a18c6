"""Timing that survives a noisy machine: contestants take turns, and the median turn counts."""

import statistics
import time
from collections.abc import Callable, Mapping

import torch


def seconds(
    contestants: Mapping[str, Callable[[], object]], *, threads: int = 1, rounds: int = 15, turn: float = 0.05
) -> dict[str, float]:
    """Median seconds per call of each contestant; all of them run in every round, about `turn` seconds each."""
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        calls = {name: _calls_per_turn(function, turn) for name, function in contestants.items()}
        times: dict[str, list[float]] = {name: [] for name in contestants}
        for _ in range(rounds):
            for name, function in contestants.items():
                start = time.perf_counter()
                for _ in range(calls[name]):
                    function()
                times[name].append((time.perf_counter() - start) / calls[name])
        return {name: statistics.median(t) for name, t in times.items()}
    finally:
        torch.set_num_threads(before)


def _calls_per_turn(function: Callable[[], object], turn: float) -> int:
    function()  # warm up
    start = time.perf_counter()
    function()
    return max(1, round(turn / max(time.perf_counter() - start, 1e-9)))
