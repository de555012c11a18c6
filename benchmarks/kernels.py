"""What each compiled kernel earns: whole steps and commands with everything on, and with just this kernel off.

All settings take turns in every round, and the median turn counts. A kernel is kept if switching it off makes some
model's step, or a whole command, at least 5 % slower. A kernel that needs another one goes off with it: without
`residual_chain` there is no `local_networks` either.
"""

import os
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch

from benchmarks import conv, train
from dvaepp.codes import HammingIndex
from dvaepp.evaluation import log_likelihood
from dvaepp.kernels import policy

THREADS = (1, 2)
Work = Callable[[], object]


def run() -> dict[str, Any]:
    rows: list[dict[str, Any]] = []
    for name, (build, kernels, calls, rounds) in WORK.items():
        work = build()
        for threads in THREADS:
            rows += compare(name, work, kernels, calls, rounds, threads)
    return {"rows": rows}


def compare(
    name: str, work: Work, kernels: Sequence[str], calls: int, rounds: int, threads: int
) -> list[dict[str, Any]]:
    times: dict[str, list[float]] = {kernel: [] for kernel in ("", *kernels)}
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        for index in range(rounds + 1):
            for kernel, found in times.items():
                with without(kernel):
                    start = time.perf_counter()
                    for _ in range(calls):
                        work()
                    if index > 0:  # the first round warms up
                        found.append((time.perf_counter() - start) / calls)
    finally:
        torch.set_num_threads(before)
    on = times.pop("")
    return [
        {
            "kernel": kernel,
            "in": name,
            "threads": threads,
            "ms with all": 1e3 * statistics.median(on),
            "ms without it": 1e3 * statistics.median(off),
            "slower without it by": statistics.median(b / a - 1 for a, b in zip(on, off, strict=True)),
        }
        for kernel, off in times.items()
    ]


@contextmanager
def without(kernel: str) -> Iterator[None]:
    """A kernel, or none for an empty name, switched off as a user would do it."""
    before = os.environ.get("DVAEPP_KERNEL")
    os.environ["DVAEPP_KERNEL"] = f"-{kernel}" if kernel else "on"
    try:
        yield
    finally:
        os.environ.pop("DVAEPP_KERNEL")
        if before is not None:
            os.environ["DVAEPP_KERNEL"] = before


def table2_step() -> Work:
    return train.OurStep((torch.rand(1000, train.PIXELS, generator=_generator()) < 0.13).float())


def table3_step(dataset: str) -> Work:
    return conv.OurStep((torch.rand(conv.BATCH, 1, 28, 28, generator=_generator()) < 0.13).float(), dataset)


def evaluation() -> Work:
    model = table2_step().state.model.eval()  # type: ignore[attr-defined]
    x = (torch.rand(100, train.PIXELS, generator=_generator()) < 0.13).float()
    return lambda: log_likelihood(model, x, 100)


def search() -> Work:
    codes = torch.rand(100_000, 64, generator=_generator()) < 0.5
    index = HammingIndex(64)
    index.add(codes)
    return lambda: index.search(codes[:50], k=10, threads=torch.get_num_threads())


def _generator() -> torch.Generator:
    return torch.Generator().manual_seed(0)


CONVOLUTIONAL = [kernel for kernel in policy.KERNELS if kernel not in ("bernoulli", "gibbs", "hamming", "products")]
# what is timed: how it is built, the kernels that it uses, calls in a turn, and rounds
WORK: dict[str, tuple[Callable[[], Work], Sequence[str], int, int]] = {
    "step of table2.rbm, 2 nonlinear layers": (table2_step, ["gibbs", "bernoulli", "products"], 20, 15),
    "evaluation of the same, K = 100": (evaluation, ["bernoulli", "products"], 1, 9),
    "step of table3.rbm, OMNIGLOT": (partial(table3_step, "omniglot"), CONVOLUTIONAL, 1, 7),
    "step of table3.rbm, Caltech": (partial(table3_step, "caltech"), CONVOLUTIONAL, 1, 3),
    "search in 100 000 codes of 64 bits": (search, ["hamming"], 1, 9),
}
