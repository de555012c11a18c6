"""Records of studies: one JSON file each in benchmarks/records/studies, with machine, commit, date and settings."""

import argparse
import json
from datetime import date
from pathlib import Path
from typing import Any

from benchmarks.record import ROOT, commit, machine

FOLDER = ROOT / "benchmarks" / "records" / "studies"
NAMES = ("retrieval", "compression", "quantizer")


def write(out: Path, settings: argparse.Namespace, result: dict[str, Any]) -> None:
    """Keep a result. Settings that are paths stay out: where runs lay on a machine is nobody else's business."""
    plain = {name: value for name, value in vars(settings).items() if not isinstance(value, Path) and value is not None}
    about = {"date": str(date.today()), "commit": commit(), "machine": machine(), "settings": plain}
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(json.dumps(about | result, indent=1) + "\n")


def read(name: str, folder: Path = FOLDER) -> dict[str, Any] | None:
    """The record of a study, or None where it was not made yet."""
    path = folder / f"{name}.json"
    return json.loads(path.read_text()) if path.is_file() else None
