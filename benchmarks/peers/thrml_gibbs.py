"""Time block-Gibbs sampling of an RBM by `thrml` (JAX); one JSON object on stdout.

The model is an IsingEBM on the complete bipartite graph, sampled by an IsingSamplingProgram whose two blocks are the
sides; chains are a vmap. Its units are spins s = 2z - 1 and its energy is -b·s - sᵀJs, so z1ᵀ W z2 of {0, 1} units
becomes J = W/4 and b = (row or column sums of W)/4. JAX has no number of threads: the process is held to as many cores.
"""

import argparse
import contextlib
import json
import os
import sys
import time
from importlib.metadata import version
from typing import Any

PEER = "thrml"


def measure(chains: int, left: int, right: int, sweeps: int, threads: int, repeats: int) -> dict[str, Any]:
    """Seconds of each repeat after compilation; weights W of the {0, 1} units are N(0, 0.1²), their biases zero."""
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:threads])  # before JAX starts its threads
    import jax  # type: ignore[import, unused-ignore]
    import jax.numpy as jnp  # type: ignore[import, unused-ignore]
    from thrml import Block, SamplingSchedule, SpinNode, sample_states  # type: ignore[import, unused-ignore]
    from thrml.models import IsingEBM, IsingSamplingProgram  # type: ignore[import, unused-ignore]

    weight = 0.1 * jax.random.normal(jax.random.key(0), (left, right))
    nodes = [SpinNode() for _ in range(left + right)]
    edges = [(a, b) for a in nodes[:left] for b in nodes[left:]]
    biases = jnp.concatenate([weight.sum(1), weight.sum(0)]) / 4
    machine = IsingEBM(nodes, edges, biases, weight.reshape(-1) / 4, jnp.array(1.0))
    blocks = [Block(nodes[:left]), Block(nodes[left:])]
    program = IsingSamplingProgram(machine, blocks, [])
    schedule = SamplingSchedule(n_warmup=sweeps, n_samples=1, steps_per_sample=1)

    def all_chains(keys: Any, start: Any) -> Any:
        return jax.vmap(lambda key, state: sample_states(key, program, schedule, state, [], blocks))(keys, start)

    sample = jax.jit(all_chains)
    start = [jnp.zeros((chains, size), bool) for size in (left, right)]
    seconds = []
    for repeat in range(repeats + 1):  # the first compiles
        keys = jax.random.split(jax.random.key(repeat), chains)
        begin = time.perf_counter()
        jax.block_until_ready(sample(keys, start))
        seconds.append(time.perf_counter() - begin)
    call = "jit(vmap(thrml.sample_states(key, IsingSamplingProgram(ebm, sides, []), schedule, ...)))"
    return {"peer": PEER, "version": version(PEER), "seconds": seconds[1:], "call": call}


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
