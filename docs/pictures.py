"""Draws docs/images/first-screen.png, the first picture of the README and of the site, with a model that is shipped.

    python docs/pictures.py        # needs static MNIST: --data-dir or $DVAEPP_DATA, or it is downloaded

Left are samples of the prior, right test images, each above its reconstruction from 200 bits.
"""

from pathlib import Path

import numpy as np
import torch
from PIL import Image

import dvaepp
from dvaepp.reporting.images import grid

HERE = Path(__file__).parent
MODEL = "mnist-rbm"
COLUMNS, ROWS, ZOOM, BETWEEN = 11, 6, 2, 12


def main() -> None:
    model = dvaepp.load(MODEL)
    generator = torch.Generator().manual_seed(3)
    samples = model.sample(COLUMNS * ROWS, generator)
    data = dvaepp.data.load("mnist_static")
    x = data.images("test", dvaepp.data.subset(len(data.test), COLUMNS * ROWS // 2))
    found = model.reconstruct(x, generator)
    rows = torch.stack([x.reshape(-1, COLUMNS, 1, 28, 28), found.reshape(-1, COLUMNS, 1, 28, 28)], 1)
    left, right = grid(samples, COLUMNS), grid(rows.flatten(0, 2), COLUMNS)
    between = np.zeros((len(left), BETWEEN), np.uint8)
    levels = np.concatenate([left & 0xF0 | left >> 4, between, right & 0xF0 | right >> 4], 1)  # 16 levels: a small file
    opaque = np.concatenate([left | 255, between, right | 255], 1)
    picture = Image.merge("LA", [Image.fromarray(levels), Image.fromarray(opaque)])
    picture = picture.resize((picture.width * ZOOM, picture.height * ZOOM), Image.Resampling.NEAREST)
    picture.save(HERE / "images/first-screen.png", optimize=True)


if __name__ == "__main__":
    main()
