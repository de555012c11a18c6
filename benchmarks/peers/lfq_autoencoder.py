"""Train the studies' autoencoder around `LFQ` of vector-quantize-pytorch; one JSON object on stdout.

The file holds `train` and `test` images as uint8. LFQ's entropy loss enters with the weights of its own example.
"""

import argparse
import contextlib
import json
import sys
from importlib.metadata import version
from pathlib import Path
from typing import Any

PEER = "vector-quantize-pytorch"


def measure(data: Path, bits: int, epochs: int, seed: int, threads: int) -> dict[str, Any]:
    import numpy as np
    import torch
    from vector_quantize_pytorch import LFQ  # type: ignore[import-not-found]

    sys.path.insert(0, str(Path(__file__).parents[2]))
    from benchmarks.studies.autoencoder import DIM, Step, train

    class Lookup(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = LFQ(codebook_size=2**bits, dim=DIM, entropy_loss_weight=0.02, diversity_gamma=1.0)

        def forward(self, features: torch.Tensor) -> Step:
            quantized, indices, loss = self.layer(features)
            shifts = torch.arange(bits - 1, -1, -1)
            return Step(quantized, loss, (indices[:, None] >> shifts[:, None, None]) & 1)

    torch.set_num_threads(threads)
    torch.manual_seed(seed)
    with np.load(data, allow_pickle=False) as arrays:
        images = {name: torch.from_numpy(arrays[name]) for name in ("train", "test")}
    history = train(Lookup(), images["train"], images["test"], epochs)
    return {"peer": PEER, "version": version(PEER), "history": history, "call": "LFQ(codebook_size, dim)(features)"}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True)
    for name in ("bits", "epochs", "seed", "threads"):
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
