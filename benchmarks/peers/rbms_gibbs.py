"""Time block-Gibbs sampling of a Bernoulli-Bernoulli RBM by the `rbms` library; one JSON object on stdout.

`sample_state(n)` does n sweeps (hidden, then visible) and resamples the hidden side once more at its end, so its
time holds n + 1/2 sweeps. One untimed call comes first: rbms compiles its half-sweeps with torch.jit.
"""

import argparse
import contextlib
import json
import sys
import time
from importlib.metadata import version
from typing import Any


def measure(chains: int, left: int, right: int, sweeps: int, threads: int, repeats: int) -> dict[str, Any]:
    """Seconds of each repeat; `left` is the visible side, weights are N(0, 0.1²), biases zero."""
    import torch  # here, so that a missing package is reported as JSON too
    from rbms.bernoulli_bernoulli.classes import BBRBM  # type: ignore[import-not-found]
    from rbms.sampling.gibbs import sample_state  # type: ignore[import-not-found]

    torch.set_num_threads(threads)
    torch.manual_seed(0)
    rbm = BBRBM(weight_matrix=0.1 * torch.randn(left, right), vbias=torch.zeros(left), hbias=torch.zeros(right))
    state = sample_state(sweeps, rbm.init_chains(chains), rbm)
    seconds = []
    for _ in range(repeats):
        start = time.perf_counter()
        state = sample_state(sweeps, state, rbm)
        seconds.append(time.perf_counter() - start)
    call = "rbms.sampling.gibbs.sample_state(gibbs_steps, chains, params)"
    return {"peer": "rbms", "version": version("rbms"), "seconds": seconds, "call": call}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in ("chains", "left", "right", "sweeps", "threads", "repeats"):
        parser.add_argument(f"--{name}", type=int, required=True)
    arguments = parser.parse_args()
    try:
        with contextlib.redirect_stdout(sys.stderr):  # stdout carries the JSON alone
            result = measure(**vars(arguments))
    except Exception as error:
        result = {"peer": "rbms", "error": " ".join(f"{type(error).__name__}: {error}".split())}
    print(json.dumps(result))


if __name__ == "__main__":
    main()
