"""Lossless coding of 28 x 28 binary images: images per second of bits-back coding, and rates of other compressors.

The model has the sizes of table2.marginal (one and two groups of 200 units, 200-200 tanh layers) and is not trained, so
its rate means nothing here: `python -m benchmarks.studies.compression` trains one and compares rates.
"""

import time
from typing import Any

import numpy as np
import torch

from benchmarks.studies.compressors import rates
from dvaepp.codes import archive
from dvaepp.codes.quantize import integer_model
from dvaepp.models.feedforward import FeedForward

IMAGES = 300
SIZES = {"one group of 200": [200], "two groups of 200": [200, 200]}


def strokes(count: int) -> Any:
    """Images (count, 1, 28, 28) with smooth blobs, about as dark as digits."""
    generator = torch.Generator().manual_seed(0)
    noise = torch.rand(count, 1, 28, 28, generator=generator)
    smooth = torch.nn.functional.avg_pool2d(noise, 7, 1, 3)
    return (smooth > smooth.flatten(1).quantile(0.87, 1)[:, None, None, None]).to(torch.uint8).numpy()


def run() -> dict[str, Any]:
    images, rows = strokes(IMAGES), []
    for name, groups in SIZES.items():
        generator = torch.Generator().manual_seed(0)
        mean = torch.from_numpy(images.mean(0)).float()
        network = FeedForward(mean, groups, hidden=(200, 200), prior="directed", generator=generator)
        model = integer_model(network.eval())
        start = time.perf_counter()
        made = archive.compress(model, images)
        middle = time.perf_counter()
        exact = bool(np.array_equal(archive.decompress(model, made.data), images))
        stop = time.perf_counter()
        rows.append(
            {
                "model": name,
                "images/s compressed": IMAGES / (middle - start),
                "images/s decompressed": IMAGES / (stop - middle),
                "exact": exact,
            }
        )
    return {"images": IMAGES, "rows": rows, "bits per pixel of others on these images": rates(images[:, 0])}
