"""Importance-weighted evaluation of Table 2's two-layer nonlinear model, binary limit: images x samples per second.

The limit is the matrix products of the same samples by `torch.mm` and nothing else; where the kernel `products` is on,
ours may stay below it. pythae's `get_nll` runs on a net of equal layers with one Gaussian group. `full test set` is the
time for 10 000 images with 4000 samples each, extrapolated from the rate measured here.
"""

import resource
import sys
import time
from typing import Any

import torch

from benchmarks import peers
from dvaepp.evaluation import log_likelihood
from dvaepp.models.feedforward import FeedForward
from dvaepp.priors import RBM

IMAGES, SAMPLES = 100, 400
FULL = 10_000 * 4000


def run() -> dict[str, Any]:
    rows = []
    for threads in (1, 2):
        row = measure(threads)
        pythae = peers.measure("pythae_nll.py", "pythae", threads, IMAGES, SAMPLES)
        rate = pythae.get("images x samples per second")
        row["pythae"] = pythae.get("error", "") if rate is None else rate
        row["faster than pythae by"] = "" if rate is None else row["images x samples per second"] / rate
        rows.append(row)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
    return {"model": "784-200-200-(200+200)-200-200-784, RBM prior", "rows": rows, "peak_rss_bytes": peak}


def measure(threads: int) -> dict[str, Any]:
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        model = FeedForward(torch.full((1, 28, 28), 0.13), (200, 200), hidden=(200, 200))
        x = (torch.rand(IMAGES, 784, generator=torch.Generator().manual_seed(0)) < 0.13).float()
        log_likelihood(model, x, 40)
        start = time.perf_counter()
        log_likelihood(model, x, SAMPLES)
        rate = IMAGES * SAMPLES / (time.perf_counter() - start)
        limit = products(model)
    finally:
        torch.set_num_threads(before)
    return {
        "threads": threads,
        "images x samples per second": rate,
        "products alone": limit,
        "ratio to limit": limit / rate,
        "full test set, minutes": FULL / rate / 60,
    }


@torch.no_grad()
def products(model: FeedForward) -> float:
    """Images x samples per second of the products alone, in the blocks that evaluation uses."""
    rows, blocks = 2000, 20
    second, decoder = model.encoders[1], model.decoder
    weights = [second.get_parameter("layers.0.weight")[:, 784:]]
    weights += [net.get_parameter(f"layers.{i}.weight") for net in (second,) for i in (1, 2)]
    weights += [decoder.get_parameter(f"layers.{i}.weight") for i in (0, 1, 2)]
    assert isinstance(model.prior, RBM)
    weights.append(model.prior.weight.t())
    inputs = [torch.rand(rows, w.shape[1]) for w in weights]
    outputs = [torch.empty(rows, w.shape[0]) for w in weights]
    start = time.perf_counter()
    for _ in range(blocks):
        for x, w, out in zip(inputs, weights, outputs, strict=True):
            torch.mm(x, w.t(), out=out)
    return rows * blocks / (time.perf_counter() - start)
