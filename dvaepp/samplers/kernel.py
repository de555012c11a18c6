"""The compiled half-sweep: found, built once into the user's cache, or done without.

`kernel.c` fuses noise and threshold. It needs a C compiler and nothing else; without one, or with DVAEPP_KERNEL=off,
samplers take the plain path in torch, which costs speed and never correctness.
"""

import ctypes
import functools
import hashlib
import logging
import os
import platform
import shutil
import stat
import subprocess
import tempfile
from pathlib import Path

from torch import Tensor

logger = logging.getLogger(__name__)

SOURCE = Path(__file__).with_suffix(".c")
FLAGS = ["-O3", "-fopenmp", "-fno-math-errno", "-fno-trapping-math", "-shared", "-fPIC", "-std=gnu11"]
NATIVE = ["-march=native", "-mprefer-vector-width=512"]  # the second is x86's; tried without if refused


class Kernel:
    """The functions of `kernel.c`."""

    def __init__(self, library: ctypes.CDLL) -> None:
        pointer, integer, word = ctypes.c_void_p, ctypes.c_int64, ctypes.c_uint64
        self._threshold = library.dvaepp_threshold
        self._threshold.restype = None
        self._threshold.argtypes = [pointer, integer, pointer, pointer, pointer, pointer, integer, integer, integer]
        self._threshold.argtypes += [word, word, ctypes.c_int]
        self._words = library.dvaepp_words
        self._words.restype = None
        self._words.argtypes = [pointer, integer, integer, word, word]

    def threshold(
        self,
        acc: Tensor,
        base: Tensor,
        delta: Tensor,
        scale: Tensor | None,
        out: Tensor,
        key: int,
        step: int,
        threads: int,
    ) -> None:
        """out = 1[u < sigmoid(base + scale (acc + delta))], float32 rows with unit stride inside a row."""
        scales = None if scale is None else scale.data_ptr()
        self._threshold(
            acc.data_ptr(),
            acc.stride(0),
            base.data_ptr(),
            delta.data_ptr(),
            scales,
            out.data_ptr(),
            out.stride(0),
            out.shape[0],
            out.shape[1],
            key,
            step,
            threads,
        )

    def words(self, out: Tensor, block: int, key: int, step: int) -> None:
        """Fill a flat int32 tensor, a multiple of 64 long, with the generator's words from element 64 * block on."""
        self._words(out.data_ptr(), block, out.numel() // 64, key, step)


@functools.cache
def load() -> Kernel | None:
    """The kernel, compiled on first use; None where that is impossible or switched off."""
    if os.environ.get("DVAEPP_KERNEL", "").lower() in ("off", "0"):
        return None
    compiler = shutil.which(os.environ.get("CC", "cc")) or shutil.which("gcc") or shutil.which("clang")
    if compiler is None:
        logger.info("no C compiler found: block Gibbs runs in plain torch, several times slower")
        return None
    try:
        return Kernel(ctypes.CDLL(str(_build(compiler))))
    except (OSError, subprocess.SubprocessError, AttributeError) as error:
        logger.info("the compiled half-sweep is not available (%s): block Gibbs runs in plain torch", error)
        return None


def _build(compiler: str) -> Path:
    """Compile into the cache under a name that changes with source, compiler and processor."""
    version = subprocess.run([compiler, "--version"], capture_output=True, check=True, timeout=30).stdout
    identity = [SOURCE.read_bytes(), version, _processor(), repr(FLAGS + NATIVE).encode()]
    name = f"half_sweep-{hashlib.sha256(b'|'.join(identity)).hexdigest()[:24]}.so"
    folder = _cache()
    target = folder / name
    if target.exists():
        return target
    with tempfile.TemporaryDirectory(dir=folder) as scratch:
        built = Path(scratch) / name
        for native in (NATIVE, NATIVE[:1], []):
            command = [compiler, *FLAGS, *native, str(SOURCE), "-o", str(built)]
            done = subprocess.run(command, capture_output=True, timeout=120)
            if done.returncode == 0:
                built.replace(target)  # atomic: another process sees all of it or none
                return target
    raise subprocess.SubprocessError(done.stderr.decode(errors="replace").strip().splitlines()[-1:])


def _cache() -> Path:
    """A folder that only this user can write: code is loaded from it."""
    root = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    folder = Path(root) / "dvaepp" / "kernels"
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    info = folder.stat()
    if info.st_uid != os.getuid() or info.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise OSError(f"{folder} can be written by others; chmod 700 it, or set XDG_CACHE_HOME")
    return folder


def _processor() -> bytes:
    try:
        lines = Path("/proc/cpuinfo").read_bytes().splitlines()
        return b"".join(sorted({line for line in lines if line.startswith((b"flags", b"model name", b"Features"))}))
    except OSError:
        return platform.processor().encode()
