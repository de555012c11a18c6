"""Which form of a computation runs, for which device, type and size: the only place that decides.

Compiled forms take float32 on a CPU. All other devices and types, and every size that no form is faster for, are left
to plain torch, and so is everything inside `torch.func` and `torch.autocast`. `DVAEPP_KERNEL=off` switches all off, and
`DVAEPP_KERNEL=-gibbs,-winograd` the named ones. The thresholds were measured on the models of the paper's Table 4;
`python -m benchmarks kernels` measures what each kernel earns in a whole step.
"""

import ctypes
import functools
import os
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor

from dvaepp.errors import UsageError
from dvaepp.kernels import build

FOLDER = Path(__file__).parent
# Each kernel can be switched off by its name. Its file must compile where it is to run.
KERNELS = {
    "adamax": FOLDER / "adamax.c",
    "bernoulli": FOLDER / "bernoulli.c",
    "gibbs": FOLDER / "gibbs.c",
    "hamming": FOLDER / "hamming.c",
    "winograd": FOLDER / "winograd.c",
    "wide": FOLDER / "winograd.c",
    "residual_chain": FOLDER / "residual_chain.c",
    "local_networks": FOLDER / "residual_chain.c",
    "small_maps": FOLDER / "winograd.c",
}

TILE = 4  # a map is cut into tiles of 4 x 4 pixels
LANES = 16  # floats of a vector in C
MANY_CHANNELS = 32 * 32  # inputs x outputs from which transforming a map on its way is worth its cost
SMALL_PRODUCT = 480 * 32  # inputs x outputs up to which a core's cache holds a product
LARGE_PRODUCT = 192 * 32  # inputs x outputs from which the library's large products are faster
FEW_PIXELS = 16  # input x output pixels up to which a matrix is never larger than the padded convolution
SMALL_MAP = 256  # input x output pixels up to which a matrix pays with few channels
FEW_CHANNELS = 16 * 16  # inputs x outputs


def switched_off() -> frozenset[str]:
    """The kernels that the user has switched off."""
    return _named(os.environ.get("DVAEPP_KERNEL", ""))


@functools.cache
def _named(setting: str) -> frozenset[str]:
    words = [word.strip() for word in setting.lower().split(",") if word.strip()]
    if words in ([], ["on"], ["1"]):
        return frozenset()
    if words in (["off"], ["0"]):
        return frozenset(KERNELS)
    names = {word.removeprefix("-") for word in words}
    if names - KERNELS.keys() or not all(word.startswith("-") for word in words):
        raise UsageError(
            f"DVAEPP_KERNEL={setting}: expected off, on, or kernels to switch off, such as -gibbs,-adamax; "
            f"there are {', '.join(KERNELS)}"
        )
    return frozenset(names)


@torch.compiler.assume_constant_result  # type: ignore[untyped-decorator]
def on(kernel: str) -> bool:
    """Whether a kernel is switched on and its C file compiles here; what a compiled graph found stays true in it."""
    return kernel not in switched_off() and build.library(KERNELS[kernel]) is not None


def functions(kernel: str) -> ctypes.CDLL:
    """The compiled functions of a kernel that is on."""
    found = build.library(KERNELS[kernel])
    if found is None:
        raise RuntimeError(f"{KERNELS[kernel].name} cannot be compiled here; `dvaepp doctor` tells more")
    return found


def takes(kernel: str, tensors: Sequence[Tensor]) -> bool:
    """Whether a kernel runs on these tensors: it is on, and all are float32 on a CPU.

    Inside `torch.func` and `torch.autocast`, which must see the operations, none does.
    """
    plain = all(t.dtype is torch.float32 and t.is_cpu for t in tensors) and not torch.is_autocast_enabled("cpu")
    return plain and on(kernel) and not torch._C._are_functorch_transforms_active()


def tiles(size: int, most: int) -> bool:
    """Whether a square map can be cut into tiles, at most so many to a side."""
    return size % TILE == 0 and size <= most * TILE


def as_matrix(pixels_in: int, pixels_out: int, inputs: int, outputs: int) -> bool:
    """Whether a convolution of a small map is faster as one matrix product."""
    pairs = pixels_in * pixels_out
    return pairs <= FEW_PIXELS or (pairs <= SMALL_MAP and inputs * outputs <= FEW_CHANNELS)


def by_large_products(x: Tensor, weights: Sequence[Tensor]) -> bool:
    """Whether minimal filtering leaves its products to the library, for x (pixels, ..., channels)."""
    inputs, outputs = x.shape[-1], len(weights[0])
    whole = inputs % LANES == 0 and outputs % LANES == 0 and all(len(w) == outputs for w in weights)
    large = inputs * outputs * len(weights) >= LARGE_PRODUCT
    return whole and large and tiles(round(len(x) ** 0.5), 2) and takes("wide", (x, *weights))


def in_the_cache(x: Tensor, weights: Sequence[Tensor]) -> bool:
    """Whether minimal filtering keeps everything in a core's cache, for x (pixels, ..., channels)."""
    small = weights[0][:, :, 0, 0].numel() <= SMALL_PRODUCT
    return small and tiles(round(len(x) ** 0.5), 4) and takes("winograd", (x, *weights))


def in_one_call(kernels: Sequence[Tensor], parameters: Sequence[Tensor]) -> bool:
    """Whether a chain of residual blocks with these 3 x 3 kernels and these parameters is one compiled call."""
    small = all(kernel.numel() <= 9 * SMALL_PRODUCT for kernel in kernels)
    return small and takes("residual_chain", parameters) and all(p.is_contiguous() for p in parameters)
