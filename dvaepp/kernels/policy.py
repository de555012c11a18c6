"""Which form of a computation runs for which device, type and size; this file alone decides it.

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
# Each kernel can be switched off by its name. Its file, if it has one, must compile where it is to run.
KERNELS: dict[str, Path | None] = {
    "adamax": FOLDER / "adamax.c",
    "bernoulli": FOLDER / "bernoulli.c",
    "gibbs": FOLDER / "gibbs.c",
    "hamming": FOLDER / "hamming.c",
    "normal": FOLDER / "normal.c",
    "winograd": FOLDER / "winograd.c",
    "residual_chain": FOLDER / "residual_chain.c",
    "local_networks": FOLDER / "residual_chain.c",
    "small_maps": FOLDER / "winograd.c",
    "products": None,
}

TILE = 4  # a map is cut into tiles of 4 x 4 pixels
LANES = 16  # floats of a vector in C
MANY_CHANNELS = 32 * 32  # inputs x outputs from which minimal filtering is worth its transforms
SMALL_PRODUCT = 512 * 128  # inputs x outputs up to which minimal filtering beats oneDNN's convolutions
FEW_PIXELS = 16  # input x output pixels up to which a matrix is never larger than the padded convolution
SMALL_MAP = 256  # input x output pixels up to which a matrix pays with few channels
FEW_CHANNELS = 16 * 16  # inputs x outputs
SMALLEST_PRODUCT = 100 * 150 * 150  # rows x inputs x outputs a thread, below which a call of oneDNN costs what it saves


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
    """Whether a kernel is switched on and can run here. A graph of torch.compile keeps the answer it got."""
    if kernel in switched_off():
        return False
    source = KERNELS[kernel]
    return onednn_is_faster() if source is None else build.library(source) is not None


@functools.cache
def onednn_is_faster() -> bool:
    """Whether oneDNN multiplies faster than MKL: with AVX-512 on a processor that is not Intel's (`products.py`)."""
    vectors = torch.backends.cpu.get_cpu_capability() == "AVX512" and torch.backends.mkl.is_available()
    there = torch.backends.mkldnn.is_available() and hasattr(torch.ops.mkldnn, "_linear_pointwise")
    return vectors and there and _vendor() == "AuthenticAMD"


def _vendor() -> str:
    """The maker of the processor as Linux tells it; empty elsewhere."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return ""
    return next((line.split(":", 1)[1].strip() for line in lines if line.startswith("vendor_id")), "")


def functions(kernel: str) -> ctypes.CDLL:
    """The compiled functions of a kernel that is on."""
    source = KERNELS[kernel]
    found = None if source is None else build.library(source)
    if found is None:
        raise RuntimeError(f"{kernel} cannot be compiled here; `dvaepp doctor` tells more")
    return found


def takes(kernel: str, tensors: Sequence[Tensor]) -> bool:
    """Whether a kernel runs on these tensors: it is on, and all of them are float32 on a CPU.

    No kernel runs inside `torch.func` and `torch.autocast`, which have to see the single operations of torch.
    """
    plain = all(t.dtype is torch.float32 and t.is_cpu for t in tensors) and not torch.is_autocast_enabled("cpu")
    return plain and on(kernel) and not torch._C._are_functorch_transforms_active()


def by_onednn(x: Tensor, weight: Tensor) -> bool:
    """Whether the product of x (..., inputs) and weight (outputs, inputs) goes to oneDNN."""
    if torch.compiler.is_compiling():
        return False
    return x.numel() * len(weight) >= SMALLEST_PRODUCT * torch.get_num_threads() and takes("products", (x, weight))


def autograd_alone(tensor: Tensor) -> bool:
    """Whether nothing but autograd looks at what happens to a tensor on a CPU.

    A compiler, `torch.func` and a dispatch mode do, and so does a tensor of another class, such as one without memory.
    """
    if torch.compiler.is_compiling() or torch._C._are_functorch_transforms_active():
        return False
    plain = type(tensor) is Tensor or type(tensor) is torch.nn.Parameter
    return plain and tensor.is_cpu and torch._C._len_torch_dispatch_stack() == 0


def tiles(size: int, most: int) -> bool:
    """Whether a square map can be cut into tiles, at most so many to a side."""
    return size % TILE == 0 and size <= most * TILE


def as_matrix(pixels_in: int, pixels_out: int, inputs: int, outputs: int) -> bool:
    """Whether a convolution of a small map is faster as one matrix product."""
    pairs = pixels_in * pixels_out
    return pairs <= FEW_PIXELS or (pairs <= SMALL_MAP and inputs * outputs <= FEW_CHANNELS)


def in_the_cache(x: Tensor, weights: Sequence[Tensor]) -> bool:
    """Whether minimal filtering keeps everything in a core's cache, for x (pixels, ..., channels)."""
    small = weights[0][:, :, 0, 0].numel() <= SMALL_PRODUCT
    return small and tiles(round(len(x) ** 0.5), 4) and takes("winograd", (x, *weights))


def in_one_call(kernels: Sequence[Tensor], parameters: Sequence[Tensor]) -> bool:
    """Whether a chain of residual blocks with these 3 x 3 kernels and these parameters is one compiled call."""
    small = all(kernel.numel() <= 9 * SMALL_PRODUCT for kernel in kernels)
    return small and takes("residual_chain", parameters) and all(p.is_contiguous() for p in parameters)
