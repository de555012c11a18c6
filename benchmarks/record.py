"""Records of benchmarks: one JSON file each in benchmarks/records, with the machine, the commit and the date."""

import json
import os
import pkgutil
import platform
import subprocess
from datetime import date
from pathlib import Path
from typing import Any

import torch

import benchmarks

ROOT = Path(__file__).resolve().parent.parent
FOLDER = ROOT / "benchmarks" / "records"
NOT_BENCHMARKS = {"__main__", "page", "peers", "record", "studies", "timing"}
NAMES = [i.name.replace("_", "-") for i in pkgutil.iter_modules(benchmarks.__path__) if i.name not in NOT_BENCHMARKS]


def save(name: str, result: dict[str, Any]) -> None:
    """Keep a result; the records of all benchmarks together are what docs/performance.md shows."""
    FOLDER.mkdir(exist_ok=True)
    record = {"benchmark": name, "date": str(date.today()), "commit": commit(), "machine": machine(), "result": result}
    (FOLDER / f"{name}.json").write_text(json.dumps(record, indent=1) + "\n")


def read(folder: Path = FOLDER) -> dict[str, dict[str, Any]]:
    """The records that there are, by the name of their benchmark."""
    return {name: json.loads(path.read_text()) for name in NAMES if (path := folder / f"{name}.json").is_file()}


def machine() -> dict[str, Any]:
    return {
        "processor": _processor(),
        "cores": os.cpu_count(),
        "python": platform.python_version(),
        "torch": str(torch.__version__),
    }


def _processor() -> str:
    try:
        with open("/proc/cpuinfo") as lines:
            return next(line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor()


def commit() -> str:
    """The commit that was measured, with a + where files differed from it."""
    try:
        done = [
            subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=True).stdout.strip()
            for arguments in (["rev-parse", "--short", "HEAD"], ["status", "--porcelain", "--untracked-files=no"])
        ]
    except (OSError, subprocess.SubprocessError):
        return "unknown"
    return done[0] + ("+" if done[1] else "")
