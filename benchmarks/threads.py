"""Training steps per second of Table 2's two-layer model by threads and spinning, quiet and beside a busy process.

A thread of OpenMP that waits for another keeps its core busy for a while ("spins") before it sleeps. That is quick on a
quiet machine; beside another busy process the spinning thread takes the core from the one that it waits for. The
`dvaepp` command sets `GOMP_SPINCOUNT`, which bounds the wait. The variable counts only if it is set before torch is
loaded, so that every setting runs in a process of its own; all take turns, and the median turn counts.
"""

import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from dvaepp.spinning import VARIABLES, setting

ROUNDS, SECONDS = 3, 4.0
SETTINGS: dict[str, dict[str, str]] = {
    "one thread": {"OMP_NUM_THREADS": "1"},
    "two threads, spinning as libgomp likes (before)": {"OMP_NUM_THREADS": "2"},
    "two threads, as the dvaepp command sets it (after)": {"OMP_NUM_THREADS": "2", **setting({})},
    "two threads that never spin": {"OMP_NUM_THREADS": "2", "OMP_WAIT_POLICY": "passive"},
}


def run() -> dict[str, Any]:
    speeds: dict[tuple[str, str], list[float]] = {}
    for _ in range(ROUNDS):
        for machine in ("quiet", "beside a busy process"):
            with busy(machine != "quiet"):
                for name in SETTINGS:
                    speeds.setdefault((name, machine), []).append(_measured(name))
    found = {key: statistics.median(values) for key, values in speeds.items()}
    rows = []
    for (name, machine), speed in found.items():
        one, before = found["one thread", machine], found[list(SETTINGS)[1], machine]
        row = {"threads": name, "machine": machine, "steps per second": speed}
        rows.append({**row, "one thread is faster by": one / speed, "faster than before by": speed / before})
    return {"rows": rows, "rounds": ROUNDS, "seconds": SECONDS}


@contextmanager
def busy(wanted: bool) -> Iterator[None]:
    """With one other process that never rests."""
    process = subprocess.Popen([sys.executable, "-c", "while True: pass"]) if wanted else None
    try:
        yield
    finally:
        if process is not None:
            process.kill()
            process.wait()


def _measured(name: str) -> float:
    free = {key: value for key, value in os.environ.items() if key not in (*VARIABLES, "OMP_NUM_THREADS")}
    command = [sys.executable, "-m", "benchmarks.threads"]
    done = subprocess.run(command, env={**free, **SETTINGS[name]}, capture_output=True, text=True, check=True)
    return float(json.loads(done.stdout))


def steps_per_second() -> float:
    """Of this process, under the variables that it was started with."""
    import torch

    from benchmarks import train

    torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))
    step = train.OurStep((torch.rand(1000, train.PIXELS, generator=torch.Generator().manual_seed(0)) < 0.13).float())
    for _ in range(5):
        step()
    start, steps = time.perf_counter(), 0
    while time.perf_counter() - start < SECONDS:
        step()
        steps += 1
    return steps / (time.perf_counter() - start)


if __name__ == "__main__":
    print(json.dumps(steps_per_second()))
