"""Small C files that sit beside the modules they speed up: built once into the user's cache, or done without.

They need a C compiler and nothing else; without one, or with DVAEPP_KERNEL=off, callers take their plain path in
torch, which costs speed and never correctness.
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
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

logger = logging.getLogger(__name__)

FLAGS = ["-O3", "-fopenmp", "-fno-math-errno", "-fno-trapping-math", "-shared", "-fPIC", "-std=gnu11"]
NATIVE = ["-march=native", "-mprefer-vector-width=512"]  # the second is x86's; tried without if refused
HEADERS = Path(__file__).parent

Array = Tensor | Sequence[Tensor | None] | None


@functools.cache
def library(source: Path) -> ctypes.CDLL | None:
    """The functions of a C file, compiled on first use; None where that is impossible or switched off."""
    if os.environ.get("DVAEPP_KERNEL", "").lower() in ("off", "0"):
        return None
    compiler = shutil.which(os.environ.get("CC", "cc")) or shutil.which("gcc") or shutil.which("clang")
    if compiler is None:
        logger.info("no C compiler found: %s runs in plain torch, several times slower", source.stem)
        return None
    try:
        return ctypes.CDLL(str(_build(compiler, source)))
    except (OSError, subprocess.SubprocessError) as error:
        logger.info("%s could not be compiled (%s): plain torch takes its place", source.name, error)
        return None


def call(function: Callable[..., int], job: ctypes.Structure, **arrays: Array) -> None:
    """Call a C function of a struct and a number of threads, after filling the struct's pointers.

    A sequence of tensors becomes an array of pointers; None and empty sequences stay null.
    """
    tables: list[Any] = []  # alive until the call has returned
    for name, value in arrays.items():
        if isinstance(value, Tensor):
            setattr(job, name, _address(value))
        elif value:
            tables.append((ctypes.c_void_p * len(value))(*(None if t is None else _address(t) for t in value)))
            setattr(job, name, ctypes.addressof(tables[-1]))
    if not function(ctypes.byref(job), torch.get_num_threads()):
        raise MemoryError("no memory for a compiled function's scratch space")


def _address(tensor: Tensor) -> int:
    """Where a tensor's numbers lie; C would read those of another type or device as garbage, or crash."""
    if tensor.dtype not in (torch.float32, torch.int64) or not tensor.is_cpu:
        raise TypeError(f"compiled functions take float32 on a CPU, got {tensor.dtype} on {tensor.device}")
    return tensor.data_ptr()


def _build(compiler: str, source: Path) -> Path:
    """Compile into the cache under a name that changes with source, compiler and processor."""
    version = subprocess.run([compiler, "--version"], capture_output=True, check=True, timeout=30).stdout
    headers = b"".join(h.read_bytes() for folder in (HEADERS, source.parent) for h in sorted(folder.glob("*.h")))
    identity = [source.read_bytes(), headers, version, _processor(), repr(FLAGS + NATIVE).encode()]
    name = f"{source.stem}-{hashlib.sha256(b'|'.join(identity)).hexdigest()[:24]}.so"
    folder = _cache()
    target = folder / name
    if target.exists():
        return target
    with tempfile.TemporaryDirectory(dir=folder) as scratch:
        built = Path(scratch) / name
        for native in (NATIVE, NATIVE[:1], []):
            command = [compiler, *FLAGS, *native, f"-I{HEADERS}", str(source), "-o", str(built), "-lm"]
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
