"""What this machine offers: compiler, kernels, threads, memory, devices, data sets. For bug reports and slow runs."""

import os
import platform
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import torch

from dvaepp import data
from dvaepp.kernels import build, policy
from dvaepp.spinning import VARIABLES
from dvaepp.version import __version__

KERNELS = Path(build.__file__).parent


class Finding(NamedTuple):
    """One line: what was looked at, what was found, and whether that is as it should be."""

    what: str
    found: str
    good: bool = True


def findings(data_dir: Path | None = None) -> Iterator[Finding]:
    """One after the other, since compiling takes some seconds the first time."""
    yield Finding("versions", f"dvaepp {__version__}, Python {platform.python_version()}, torch {torch.__version__}")
    yield from _kernels()
    yield _threads()
    yield _memory()
    yield from _devices()
    yield from _data_sets(data_dir)


def _kernels() -> Iterator[Finding]:
    off = policy.switched_off()
    if off:
        names = "all" if off == policy.KERNELS.keys() else ", ".join(sorted(off))
        yield Finding("kernels", f"DVAEPP_KERNEL switches off {names}: plain torch runs, several times slower", False)
        return
    compiler = build.find_compiler()
    if compiler is None:
        yield Finding("compiler", "none (cc, gcc, clang or $CC): plain torch runs, several times slower", False)
        return
    try:
        version = subprocess.run([compiler, "--version"], capture_output=True, text=True, timeout=30).stdout
        yield Finding("compiler", f"{compiler}, {(version.splitlines() or ['of unknown version'])[0]}")
        yield Finding("kernel cache", str(build.cache_folder()))
    except (OSError, subprocess.SubprocessError) as error:
        yield Finding("kernel cache", f"{error}; plain torch runs, several times slower", False)
        return
    for source in sorted(KERNELS.glob("*.c")):
        works = build.library(source) is not None
        yield Finding(f"kernel {source.stem}", "works" if works else "cannot be compiled: plain torch runs", works)


def _threads() -> Finding:
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    threads = torch.get_num_threads()
    busy = os.getloadavg()[0] if hasattr(os, "getloadavg") else 0.0
    waiting = ", ".join(f"{name}={os.environ[name]}" for name in VARIABLES if name in os.environ)
    text = f"{threads} of {cores} cores, load {busy:.1f}, {waiting or 'waiting threads spin (docs/performance.md)'}"
    if threads > 1 and busy + threads > cores + 0.5:
        return Finding("threads", f"{text}: other work runs here; OMP_NUM_THREADS=1 may be many times faster", False)
    return Finding("threads", text)


def _memory() -> Finding:
    try:
        total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
        free = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_AVPHYS_PAGES")
    except (AttributeError, ValueError, OSError):  # not every system tells
        return Finding("memory", "unknown")
    return Finding("memory", f"{total / 2**30:.1f} GiB, {free / 2**30:.1f} of it free")


def _devices() -> Iterator[Finding]:
    yield Finding("device cpu", platform.processor() or platform.machine())
    for index in range(torch.cuda.device_count()):
        about = torch.cuda.get_device_properties(index)
        yield Finding(f"device cuda:{index}", f"{about.name}, {about.total_memory / 2**30:.1f} GiB")


def _data_sets(data_dir: Path | None) -> Iterator[Finding]:
    for name in data.names():
        there = data.here(name, data_dir)
        yield Finding(f"data {name}", "here" if there else f"not here yet: dvaepp data fetch {name}")
