"""Block Gibbs on an RBM, 40 sweeps: ns per unit update beside the matrix products alone, plain torch and peers.

Ours is the public `gibbs`, checks and set-up included. The limit is the two products of each sweep and nothing else.
A peer whose 40 sweeps would take minutes is timed on fewer; the figure is per unit update all the same.
"""

import statistics
from typing import Any

import torch
from torch import Tensor

from benchmarks import peers
from benchmarks.timing import seconds
from dvaepp.kernels import gibbs as kernel
from dvaepp.priors import RBM
from dvaepp.samplers import gibbs

SWEEPS = 40  # App. E
SIZES = [(1000, 200, 200), (100, 100, 100)]
PEERS = [("rbms", "rbms_gibbs.py"), ("dwave-pytorch-plugin", "dwave_gibbs.py"), ("thrml", "thrml_gibbs.py")]

SLOW = ("dwave-pytorch-plugin", "thrml")  # minutes for 1000 chains


def machine(left: int, right: int) -> RBM:
    prior = RBM(left, right)
    with torch.no_grad():
        prior.weight.normal_(0, 0.1, generator=torch.Generator().manual_seed(0))
    return prior


def plain(prior: RBM, left: Tensor, sweeps: int) -> Tensor:
    """What one writes first."""
    for _ in range(sweeps):
        right = torch.bernoulli(torch.sigmoid(left @ prior.weight + prior.bias_right))
        left = torch.bernoulli(torch.sigmoid(right @ prior.weight.t() + prior.bias_left))
    return left


def products(prior: RBM, left: Tensor, right: Tensor, outs: tuple[Tensor, Tensor], sweeps: int) -> None:
    weight, transposed = prior.weight, prior.weight.t()
    for _ in range(sweeps):
        torch.mm(left, weight, out=outs[1])
        torch.mm(right, transposed, out=outs[0])


def run() -> dict[str, Any]:
    rows: list[dict[str, Any]] = []
    for chains, left, right in SIZES:
        for threads in (1, 2):
            rows += compare(chains, left, right, threads)
    return {
        "sweeps": SWEEPS,
        "compiled_half_sweep": kernel.available(),
        "peers": peers.status(),
        "rows": rows,
        "linearity": linearity(),
    }


def compare(chains: int, left: int, right: int, threads: int) -> list[dict[str, Any]]:
    prior = machine(left, right)
    z = (torch.rand(chains, left + right, generator=torch.Generator().manual_seed(1)) < 0.5).float()
    z_left, z_right = z[:, :left].contiguous(), z[:, left:].contiguous()
    outs = torch.empty_like(z_left), torch.empty_like(z_right)
    generator = torch.Generator().manual_seed(2)
    with torch.no_grad():
        times = seconds(
            {
                "dvaepp gibbs": lambda: gibbs(prior, z, SWEEPS, generator),
                "products alone (limit)": lambda: products(prior, z_left, z_right, outs, SWEEPS),
                "plain torch": lambda: plain(prior, z_left, SWEEPS),
            },
            threads=threads,
            rounds=9,
            turn=0.2,
        )
    updates = chains * (left + right)
    found = {name: time / (updates * SWEEPS) * 1e9 for name, time in times.items()}
    for peer, script in PEERS:
        sweeps = 1 if peer in SLOW and chains >= 1000 else SWEEPS
        sizes = ["--chains", chains, "--left", left, "--right", right, "--sweeps", sweeps]
        result = peers.measure(script, peer, *sizes, "--threads", threads, "--repeats", 3)
        per_update = statistics.median(result["seconds"]) / (updates * sweeps) * 1e9 if "seconds" in result else None
        found[f"{peer} {result.get('version', result.get('error'))}"] = per_update  # type: ignore[assignment]
    ours, limit = found["dvaepp gibbs"], found["products alone (limit)"]
    size = f"{chains} chains, {left} x {right}"
    return [
        {
            "size": size,
            "threads": threads,
            "sampler": name,
            "ns per unit update": value,
            "ratio to limit": value / limit if value else None,
            "ours is faster by": value / ours if value else None,
        }
        for name, value in found.items()
    ]


def linearity() -> list[dict[str, Any]]:
    """ns per unit update as chains and sweeps grow: flat where cost is linear."""
    prior = machine(200, 200)
    rows = []
    for chains, sweeps in ((500, 40), (1000, 40), (2000, 40), (1000, 20), (1000, 80)):
        z = torch.zeros(chains, 400)
        time = seconds({"ours": lambda z=z, n=sweeps: gibbs(prior, z, n)}, rounds=5, turn=0.2)["ours"]  # type: ignore[misc]
        rows.append({"chains": chains, "sweeps": sweeps, "ns per unit update": time / (chains * 400 * sweeps) * 1e9})
    return rows
