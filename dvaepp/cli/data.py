"""Data sets: `data list|fetch|check`."""

import sys
from pathlib import Path
from typing import Annotated, Literal

import tyro

from dvaepp.cli.arguments import DataDir, Debug, argument
from dvaepp.errors import UsageError

DatasetName = Annotated[str | None, argument("Which data set; all without a name.", "[NAME]")]


def data(
    action: tyro.conf.Positional[Annotated[Literal["list", "fetch", "check"], argument("What to do.")]],
    name: tyro.conf.Positional[DatasetName] = None,
    data_dir: DataDir = None,
    debug: Debug = False,
) -> None:
    """List the data sets, fetch them, or check the files that are there.

    Every file is held to its checksum, whether it was just downloaded or has been there.

    Examples:
        dvaepp data list
        dvaepp data fetch mnist_static
        dvaepp data check --data-dir ~/datasets
    """
    from dvaepp import data as sets

    chosen = [name] if name else sets.names()
    if action == "list":
        for each in chosen:
            print(f"{each:16} {sets.describe(each)}")
        return
    failures, offline = 0, False
    for each in chosen:
        try:
            if not name and (offline or action == "check") and not sets.here(each, data_dir):
                raise FileNotFoundError("not here" if offline else f"not here; `dvaepp data fetch {each}` downloads it")
            print(f"{each:16} {_verified(action, each, data_dir)}")
        except (OSError, UsageError) as error:
            if name:
                raise
            failures += 1
            offline |= isinstance(error, sets.NoNetwork)
            print(f"{each:16} {' '.join(str(error).split())}", file=sys.stderr)
    if failures:
        raise OSError(
            f"{failures} of {len(chosen)} data sets {'are not here or damaged' if action == 'check' else 'failed'}"
        )


def _verified(action: Literal["fetch", "check"], name: str, data_dir: Path | None) -> str:
    from dvaepp import data as sets

    paths = (sets.fetch if action == "fetch" else sets.check)(name, data_dir)
    replaced = action == "check" and sets.stand_in(name, data_dir)
    state = "stand-in, other pixels than the published file:" if replaced else "ok "
    return f"{state} {', '.join(map(str, paths))}"
