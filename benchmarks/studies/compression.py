"""Bits per pixel of a trained directed model on static MNIST's test images, beside its bound and other compressors.

Compressed in a process with two threads and kernels, decompressed in one with one thread and without kernels; the two
must agree on every pixel. The bound is the one-sample ELBO in the binary limit on the same images.

    python -m benchmarks.studies.compression --out compression.json            # trains table2.marginal; an hour or more
    python -m benchmarks.studies.compression --steps 300 --images 100 --out try.json
    python -m benchmarks.studies.compression --run RUN --out compression.json  # a run that is there already
"""

import argparse
import json
import math
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.studies import record
from benchmarks.studies.compressors import rates
from benchmarks.studies.runs import trained
from dvaepp import coding, runs
from dvaepp.codes import archive
from dvaepp.codes.quantize import integer_model

FIRST = 50  # images that pay for the bits borrowed at the start
BOUND_SAMPLES = 20  # passes over the images: the mean of one-sample bounds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--run", type=Path)
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--steps", type=int, default=100_000)
    parser.add_argument("--images", type=int, default=1000)
    parser.add_argument("--runs", type=Path, default=Path("runs/compression"))
    arguments = parser.parse_args()
    changes = {"training.steps": arguments.steps}
    run = arguments.run or trained(
        arguments.runs, "table2.marginal", [f"layers={arguments.layers}", "linear=false"], changes
    )
    arguments.steps = runs.read_recipe(run).training.steps  # those of a given run
    result = {**measured(run, arguments.images), **across_processes(run, arguments.images)}
    record.write(arguments.out, arguments, result)
    print(json.dumps(result, indent=1))


def measured(run: Path, count: int) -> dict[str, Any]:
    """Rates in this process; `python -m benchmarks compress` measures speed."""
    model = runs.load(run)
    x = coding.chosen(model, coding.Which(limit=count)).x
    images, integers = x.to(torch.uint8).numpy(), integer_model(model.model)
    made = archive.compress(integers, images)
    exact = bool(np.array_equal(archive.decompress(integers, made.data), images))
    later = np.array(made.bits[FIRST:] or made.bits)
    passes = [model.log_likelihood(x, 1, torch.Generator().manual_seed(seed)) for seed in range(BOUND_SAMPLES)]
    coded_late = torch.stack(passes)[:, : max(len(x) - FIRST, 1)]  # the last image is coded first
    bound = -coded_late.mean().item() / math.log(2)
    pixels = x[0].numel()
    return {
        "images": len(images),
        "exact": exact,
        "bits per pixel, file": 8 * len(made.data) / images.size,
        f"bits per pixel after the first {FIRST}": later.mean() / pixels,
        "its standard error": later.std() / len(later) ** 0.5 / pixels,
        "bound, bits per pixel": bound / pixels,
        "rate / bound": later.mean() / bound,
        "others, bits per pixel": rates(images[:, 0]),
    }


def across_processes(run: Path, count: int) -> dict[str, Any]:
    """The commands, one process with two threads and kernels, the other with one thread and without."""
    with tempfile.TemporaryDirectory() as folder:
        packed, back = Path(folder) / "images.dvaeppz", Path(folder) / "images.npz"
        _command("2", "", "compress", str(run), "--limit", str(count), "--out", str(packed))
        _command("1", "off", "decompress", str(run), str(packed), "--out", str(back))
        images = coding.chosen(runs.load(run), coding.Which(limit=count)).x[:, 0].numpy()
        same = bool(np.array_equal(np.load(back, allow_pickle=False)["images"], images))
    return {"two threads with kernels to one without, exact": same}


def _command(threads: str, kernel: str, *arguments: str) -> None:
    switches = {"OMP_NUM_THREADS": threads, "OPENBLAS_NUM_THREADS": threads, "DVAEPP_KERNEL": kernel}
    subprocess.run([sys.executable, "-m", "dvaepp", *arguments], check=True, env=os.environ | switches)


if __name__ == "__main__":
    main()
