"""A small autoencoder of CIFAR10 with three quantisers at equal bits: ours, straight-through, lookup-free (a peer's).

python -m benchmarks.studies.quantizer --out quantizer.json                     # 5 epochs, three seeds each
python -m benchmarks.studies.quantizer --epochs 1 --limit 2000 --seeds 0 --out try.json

Seeds that the file of `--out` has from the same settings are not trained again.
"""

import argparse
import json
import statistics
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from benchmarks import peers
from benchmarks.studies import record
from benchmarks.studies.autoencoder import DIM, Step, StraightThrough, train
from dvaepp.data import load
from dvaepp.nn import BinaryQuantizer

KL_WEIGHT = 1e-4  # of the KL per site in nats, beside a mean squared error over pixels
SHOWN = ("mse", "psnr", "code entropy")


class Ours(nn.Module):
    def __init__(self, bits: int) -> None:
        super().__init__()
        self.layer = BinaryQuantizer(DIM, bits)

    def forward(self, features: Tensor) -> Step:
        codes, zeta, loss = self.layer(features)
        return Step(self.layer.expand(zeta), KL_WEIGHT * loss, codes)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--bits", type=int, default=10)
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--limit", type=int, help="training images; a fifth as many test images")
    parser.add_argument("--threads", type=int, default=1)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    dataset = load("cifar10")
    limit = arguments.limit or len(dataset.train)
    data, test = dataset.train[:limit], dataset.test[: max(limit // 5, 1)]
    wanted = arguments.seeds
    found, arguments.seeds = earlier(arguments)
    for seed in [seed for seed in wanted if seed not in arguments.seeds]:
        for name, histories in one_seed(data, test, arguments.bits, arguments.epochs, seed, arguments.threads).items():
            found.setdefault(name, []).append(histories)
        arguments.seeds.append(seed)
        record.write(arguments.out, arguments, {"summary": summary(found), "histories": found})
    print(json.dumps(summary(found), indent=1))


def earlier(arguments: argparse.Namespace) -> tuple[dict[str, Any], list[int]]:
    """The histories that the record has already, and their seeds."""
    if not arguments.out.is_file():
        return {}, []
    before = json.loads(arguments.out.read_text())
    now = {name: getattr(arguments, name) for name in ("bits", "epochs", "limit")}
    if now != {name: before["settings"].get(name) for name in now}:
        raise SystemExit(f"{arguments.out} was made with other settings than {now}: name another file")
    return before["histories"], before["settings"]["seeds"]


def one_seed(data: Tensor, test: Tensor, bits: int, epochs: int, seed: int, threads: int) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, kind in {"BinaryQuantizer": Ours, "straight-through": StraightThrough}.items():
        torch.manual_seed(seed)
        found[name] = train(kind(bits), data, test, epochs)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "images.npz"
        np.savez(path, train=data.numpy(), test=test.numpy())
        sizes = ("--bits", bits, "--epochs", epochs, "--seed", seed, "--threads", threads)
        peer = peers.measure("lfq_autoencoder.py", "vector-quantize-pytorch", "--data", path, *sizes, timeout=36_000)
    found["lookup-free (vector-quantize-pytorch)"] = peer.get("history", peer.get("error"))
    return found


def summary(found: dict[str, Any]) -> dict[str, Any]:
    """Mean and spread over seeds of what the last epoch measured."""
    rows: dict[str, Any] = {}
    for name, histories in found.items():
        finished = [history[-1] for history in histories if isinstance(history, list)]
        if not finished:
            rows[name] = histories[0]
            continue
        values = {key: [record[key] for record in finished] for key in SHOWN}
        rows[name] = {
            key: {"mean": statistics.mean(each), "sd": statistics.stdev(each) if len(each) > 1 else None}
            for key, each in values.items()
        }
    return rows


if __name__ == "__main__":
    main()
