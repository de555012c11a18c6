"""Error of log Z against exact sums over CPU seconds, 20 x 200 units: ours beside rbms' AIS, one thread.

Every budget is run with several seeds; the error is their root mean square. `reaches_0.05` is the smallest CPU time at
which a method's error was at most 0.05 nat.
"""

import math
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks import peers
from dvaepp.log_partition import log_partition
from dvaepp.priors import RBM

LEFT, RIGHT = 20, 200
SEEDS = list(range(6))
TARGET = 0.05
AIS = [(256, 30), (256, 100), (256, 300), (1024, 1000)]  # chains, temperatures
RBMS_AIS = [(256, 30), (256, 100), (256, 300), (1024, 300), (1024, 1000)]
TEMPERING = [50, 200, 1000]  # sweeps


def machine(sd: float) -> RBM:
    g = torch.Generator().manual_seed(0)
    prior = RBM(LEFT, RIGHT)
    with torch.no_grad():
        prior.weight.normal_(0, sd, generator=g)
        prior.bias_left.normal_(generator=g)
        prior.bias_right.normal_(generator=g)
    return prior


def run() -> dict[str, Any]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    rows: list[dict[str, Any]] = []
    try:
        for sd in (0.5, 1.0):
            rows += compare(sd)
    finally:
        torch.set_num_threads(before)
    return {"units": [LEFT, RIGHT], "seeds": len(SEEDS), "threads": 1, "rows": rows, "reaches_0.05": fastest(rows)}


def compare(sd: float) -> list[dict[str, Any]]:
    prior = machine(sd)
    start = time.process_time()
    exact = log_partition(prior, "exact").value
    rows = [_row(sd, "exact sum", "", [0.0], [time.process_time() - start])]
    for chains, temperatures in AIS:
        options = {"num_chains": chains, "num_temperatures": temperatures}
        rows.append(ours(prior, sd, exact, "ais", f"{chains} chains, {temperatures} temperatures", options))
    for sweeps in TEMPERING:
        rows.append(ours(prior, sd, exact, "tempering", f"{sweeps} sweeps", {"num_sweeps": sweeps}))
    return rows + theirs(prior, sd, exact)


def ours(prior: RBM, sd: float, exact: float, method: str, budget: str, options: dict[str, int]) -> dict[str, Any]:
    errors, cpu = [], []
    for seed in SEEDS:
        start = time.process_time()
        found = log_partition(prior, method, torch.Generator().manual_seed(seed), **options)
        cpu.append(time.process_time() - start)
        errors.append(found.value - exact)
    return _row(sd, f"dvaepp {method}", budget, errors, cpu)


def theirs(prior: RBM, sd: float, exact: float) -> list[dict[str, Any]]:
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "rbm.npz"
        arrays = {name: p.detach().numpy() for name, p in prior.named_parameters()}
        np.savez(file, allow_pickle=False, **arrays)
        for chains, temperatures in RBMS_AIS:
            budget = ["--chains", chains, "--temperatures", temperatures, "--threads", 1, "--seeds", *SEEDS]
            result = peers.measure("rbms_ais.py", "rbms", "--weights", file, *budget)
            name, label = "rbms AIS", f"{chains} chains, {temperatures} temperatures"
            if "error" in result:
                rows.append({"weight sd": sd, "method": name, "budget": label, "error": result["error"]})
                continue
            rows.append(_row(sd, name, label, [v - exact for v in result["log_z"]], result["cpu_seconds"]))
    return rows


def _row(sd: float, method: str, budget: str, errors: list[float], cpu: list[float]) -> dict[str, Any]:
    rms = math.sqrt(sum(e * e for e in errors) / len(errors))
    return {
        "weight sd": sd,
        "method": method,
        "budget": budget,
        "rms error, nat": rms,
        "CPU seconds": sum(cpu) / len(cpu),
    }


def fastest(rows: list[dict[str, Any]]) -> dict[str, dict[str, float | None]]:
    """CPU seconds to the target, by weight sd and method; None where no budget reached it."""
    table: dict[str, dict[str, float | None]] = {}
    for row in rows:
        if "rms error, nat" in row:
            methods = table.setdefault(f"sd {row['weight sd']}", {})
            reached = row["CPU seconds"] if row["rms error, nat"] <= TARGET else math.inf
            methods[row["method"]] = min(methods.get(row["method"]) or math.inf, reached)
    return {sd: {m: (None if t == math.inf else t) for m, t in methods.items()} for sd, methods in table.items()}
