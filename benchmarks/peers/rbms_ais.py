"""Estimate log Z of a given RBM by the annealed importance sampling of `rbms`; one JSON object on stdout.

The file holds `bias_left` a (L,), `bias_right` b (R,) and `weight` W (L, R) of E = -a·z1 - b·z2 - z1ᵀ W z2 over {0, 1}
units. rbms has the same energy with v = z1 and h = z2, so the left side is its visible one and W needs no transpose.
It anneals from W = 0, b = 0 (a kept) in float32, its default, and sums out the right side in the weights.
`temperatures` counts the points of its linear ladder, both ends included. A tiny untimed estimate comes first,
because rbms compiles with torch.jit; then one estimate per seed.
"""

import argparse
import contextlib
import json
import sys
import time
from importlib.metadata import version
from pathlib import Path
from typing import Any


def measure(weights: Path, chains: int, temperatures: int, threads: int, seeds: list[int]) -> dict[str, Any]:
    """An estimate per seed, and the CPU seconds of each."""
    import numpy as np  # here, so that a missing package is reported as JSON too
    import torch
    from rbms.bernoulli_bernoulli.classes import BBRBM  # type: ignore[import-not-found]
    from rbms.partition_function.ais import compute_partition_function_ais  # type: ignore[import-not-found]

    torch.set_num_threads(threads)
    with np.load(weights) as arrays:
        a, b, w = (torch.tensor(arrays[name]).float() for name in ("bias_left", "bias_right", "weight"))
    if w.shape != (len(a), len(b)):
        raise ValueError(f"weight has shape {tuple(w.shape)}, the biases ask for {(len(a), len(b))}")
    rbm = BBRBM(weight_matrix=w, vbias=a, hbias=b)
    compute_partition_function_ais(num_chains=2, num_beta=4, params=rbm)
    log_z, cpu_seconds = [], []
    for seed in seeds:
        torch.manual_seed(seed)
        start = time.process_time()
        log_z.append(compute_partition_function_ais(num_chains=chains, num_beta=temperatures, params=rbm))
        cpu_seconds.append(time.process_time() - start)
    call = "rbms.partition_function.ais.compute_partition_function_ais(num_chains, num_beta, params)"
    return {"peer": "rbms", "version": version("rbms"), "log_z": log_z, "cpu_seconds": cpu_seconds, "call": call}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--weights", type=Path, required=True, metavar="FILE.npz")
    for name in ("chains", "temperatures", "threads"):
        parser.add_argument(f"--{name}", type=int, required=True)
    parser.add_argument("--seeds", type=int, nargs="+", required=True)
    arguments = parser.parse_args()
    try:
        with contextlib.redirect_stdout(sys.stderr):  # stdout carries the JSON alone
            result = measure(**vars(arguments))
    except Exception as error:
        result = {"peer": "rbms", "error": " ".join(f"{type(error).__name__}: {error}".split())}
    print(json.dumps(result))


if __name__ == "__main__":
    main()
