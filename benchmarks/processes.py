"""Steps per second with one process and with two, one thread each, on the same global batch.

The two-layer RBM model of Table 2 and the OMNIGLOT DVAE++ of Table 3, batch 100. Two processes exchange gradients,
batch-norm moments and flags by gloo; their limit is twice the speed of one.
"""

import json
import os
import socket
import statistics
import subprocess
import sys
import time
from typing import Any

import torch

from dvaepp import distributed, recipes
from dvaepp.models.build import build_model
from dvaepp.samplers import pcd
from dvaepp.training.state import State, build_optimizer
from dvaepp.training.step import update

MODELS = {
    "table2.rbm, 2 nonlinear layers": ("table2.rbm", ["layers=2", "linear=false"], 100),
    "table3.rbm, omniglot": ("table3.rbm", ["dataset=omniglot"], 5),
}
ROUNDS = 5


def run() -> dict[str, Any]:
    rows = []
    for name in MODELS:
        times = {count: _measured(name, count) for count in (1, 2)}
        for count, seconds in times.items():
            rows.append(
                {
                    "model": name,
                    "processes": count,
                    "steps per second": 1 / seconds,
                    "faster than one by": times[1] / seconds,
                }
            )
    return {"batch": 100, "threads per process": 1, "rows": rows}


def _measured(name: str, count: int) -> float:
    """Median seconds per step, as the first process saw it."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    started = []
    for rank in range(count):
        job = {"RANK": rank, "WORLD_SIZE": count, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
        environment = {**os.environ, **{key: str(value) for key, value in job.items()}, "OMP_NUM_THREADS": "1"}
        command = [sys.executable, "-m", "benchmarks.processes", name]
        started.append(subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True))
    answers = [process.communicate()[0] for process in started]
    if any(process.returncode for process in started):
        raise RuntimeError(f"a process of {count} failed: see above")
    return float(json.loads(answers[0]))


def _steps(name: str) -> float:
    torch.set_num_threads(1)
    recipe_name, arguments, steps = MODELS[name]
    recipe = recipes.build(recipe_name, arguments)
    model = build_model(recipe.model, torch.full((1, 28, 28), 0.13), torch.Generator().manual_seed(0))
    assert model.boltzmann is not None
    generator = torch.Generator().manual_seed(0)
    x = (torch.rand(100, 1, 28, 28, generator=generator) < 0.13).float()
    shard = distributed.shard(100) if distributed.size() > 1 else None
    chains = pcd.init(model.boltzmann, recipe.chains.num_chains, generator, shard)
    state = State(model.train(), build_optimizer(recipe, model), chains, generator, 0)
    mine = x if shard is None else x[shard.first : shard.last]
    times = []
    for _ in range(ROUNDS + 1):
        start = time.perf_counter()
        for _ in range(steps):
            state = update(recipe, state, mine, shard)[0]._replace(step=1000)
        times.append((time.perf_counter() - start) / steps)
    return statistics.median(times[1:])


if __name__ == "__main__":
    with distributed.joined():
        seconds = _steps(sys.argv[1])
        if distributed.rank() == 0:
            print(json.dumps(seconds))
