"""Compile, cache and load the C files of this folder.

Nothing but a C compiler is needed. Without one, callers run their plain form in torch, which is slower and equally
correct. `policy.py` says which file is asked for, and when.
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
NATIVE = ["-march=native", "-mprefer-vector-width=512"]  # the second flag is x86's; `_compile` tries without it, too

Array = Tensor | Sequence[Tensor | None] | None


@functools.cache
def library(source: Path) -> ctypes.CDLL | None:
    """The functions of a C file, compiled on first use; None where that is impossible, which is said once."""
    compiler = find_compiler()
    if compiler is None:
        _say_once("no C compiler found (cc, gcc, clang or $CC)")
        return None
    try:
        return ctypes.CDLL(str(_build(compiler, source)))
    except (OSError, subprocess.SubprocessError) as error:
        _say_once(f"{source.name} could not be compiled ({error})")
        return None


def find_compiler() -> str | None:
    return shutil.which(os.environ.get("CC", "cc")) or shutil.which("gcc") or shutil.which("clang")


@functools.cache
def _say_once(reason: str) -> None:
    """Log one line for each reason. Python shows warnings of a logger even where no logging was set up."""
    logger.warning(
        "dvaepp: %s: plain torch takes its place, with the same results and up to several times slower; "
        "`dvaepp doctor` tells more, and DVAEPP_KERNEL=off silences this line",
        reason,
    )


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
    """The compiled file in the cache, under a name that changes with source, compiler and processor.

    A file is loaded only if it has the digest that was noted when it was built: a truncated one would end the process
    by a signal, with nothing for Python to catch.
    """
    version = subprocess.run([compiler, "--version"], capture_output=True, check=True, timeout=30).stdout
    headers = b"".join(header.read_bytes() for header in sorted(source.parent.glob("*.h")))
    identity = [source.read_bytes(), headers, version, _processor(), repr(FLAGS + NATIVE).encode()]
    name = f"{source.stem}-{hashlib.sha256(b'|'.join(identity)).hexdigest()[:24]}.so"
    folder = cache_folder()
    target, noted = folder / name, folder / f"{name}.sha256"
    if target.is_file() and noted.is_file() and noted.read_text() == _digest(target):
        return target
    with tempfile.TemporaryDirectory(dir=folder) as scratch:
        built, note = Path(scratch) / name, Path(scratch) / noted.name
        _compile(compiler, source, built)
        note.write_text(_digest(built))
        for made, place in ((built, target), (note, noted)):
            with open(made, "rb") as file:
                os.fsync(file.fileno())
            made.replace(place)  # atomic, so that another process sees the whole file or none
    return target


def _compile(compiler: str, source: Path, built: Path) -> None:
    for native in (NATIVE, NATIVE[:1], []):
        command = [compiler, *FLAGS, *native, str(source), "-o", str(built), "-lm"]
        done = subprocess.run(command, capture_output=True, timeout=120)
        if done.returncode == 0:
            return
    raise subprocess.SubprocessError(" ".join(done.stderr.decode(errors="replace").split())[-200:])


def _digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def cache_folder() -> Path:
    """A folder that only this user can write, in folders that nobody else can swap: code is loaded from it."""
    root = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    folder = (Path(root) / "dvaepp" / "kernels").absolute()
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    info = folder.stat()
    if info.st_uid != os.getuid() or info.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise OSError(f"{folder} can be written by others; chmod 700 it, or set XDG_CACHE_HOME")
    for parent in folder.resolve().parents:
        info = parent.stat()
        shared = info.st_mode & (stat.S_IWGRP | stat.S_IWOTH) and not info.st_mode & stat.S_ISVTX
        if info.st_uid not in (0, os.getuid()) or shared:
            raise OSError(f"{parent}, above {folder}, can be changed by others; set XDG_CACHE_HOME elsewhere")
    return folder


def _processor() -> bytes:
    try:
        lines = Path("/proc/cpuinfo").read_bytes().splitlines()
        return b"".join(sorted({line for line in lines if line.startswith((b"flags", b"model name", b"Features"))}))
    except OSError:
        return platform.processor().encode()
