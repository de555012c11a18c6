"""Time block-Gibbs sampling of an RBM by D-Wave's `dwave-pytorch-plugin`; one JSON object on stdout.

The model is a GraphRestrictedBoltzmannMachine on the complete bipartite graph. Its units are spins s = 2z - 1 and its
energy is h·s + sᵀJs, so z1ᵀ W z2 of {0, 1} units becomes J = -W/4 and h = -(row or column sums of W)/4.
The plugin's BlockSampler was the fastest it has: BipartiteGibbsSampler took twice as long for 100 chains of 100 x 100.
"""

import argparse
import contextlib
import json
import sys
import time
from importlib.metadata import version
from typing import Any

PEER = "dwave-pytorch-plugin"


def measure(chains: int, left: int, right: int, sweeps: int, threads: int, repeats: int) -> dict[str, Any]:
    """Seconds of each repeat; weights W of the {0, 1} units are N(0, 0.1²), their biases zero."""
    import torch  # here, so that a missing package is reported as JSON too
    from dwave.plugins.torch.models import GraphRestrictedBoltzmannMachine  # type: ignore[import, unused-ignore]
    from dwave.plugins.torch.samplers import BlockSampler  # type: ignore[import, unused-ignore]

    torch.set_num_threads(threads)
    torch.manual_seed(0)
    weight = 0.1 * torch.randn(left, right)
    fields = -torch.cat([weight.sum(1), weight.sum(0)]) / 4
    edges = [(i, left + j) for i in range(left) for j in range(right)]
    machine = GraphRestrictedBoltzmannMachine(
        nodes=range(left + right),
        edges=edges,
        linear=dict(enumerate(fields.tolist())),
        quadratic=dict(zip(edges, (-weight / 4).flatten().tolist(), strict=True)),
    )
    schedule = [1.0] * sweeps  # one sweep per inverse temperature
    sampler = BlockSampler(machine, lambda node: node >= left, chains, schedule, "Gibbs", seed=0)
    sampler.sample()
    seconds = []
    for _ in range(repeats):
        start = time.perf_counter()
        sampler.sample()
        seconds.append(time.perf_counter() - start)
    call = "dwave.plugins.torch.samplers.BlockSampler(grbm, colouring, num_chains, schedule, 'Gibbs').sample()"
    return {"peer": PEER, "version": version(PEER), "seconds": seconds, "call": call}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in ("chains", "left", "right", "sweeps", "threads", "repeats"):
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
