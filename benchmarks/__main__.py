"""`python -m benchmarks`: run the named benchmarks (all without a name) and print tables, or JSON.

`--save` keeps each result in benchmarks/records, from where `python -m benchmarks.page` writes docs/performance.md.
"""

import argparse
import importlib
import json
import sys
from typing import Any

from benchmarks.record import NAMES, machine, save


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"any of: {', '.join(NAMES)} (default: all)")
    parser.add_argument("--json", action="store_true", help="print one JSON object and nothing else on stdout")
    parser.add_argument("--save", action="store_true", help="keep the results in benchmarks/records")
    arguments = parser.parse_args()
    unknown = [name for name in arguments.names if name not in NAMES]
    if unknown:
        parser.error(f"no benchmark called {', '.join(unknown)}; there are {', '.join(NAMES)}")
    records: dict[str, Any] = {"machine": machine()}
    for name in arguments.names or NAMES:
        print(f"running {name} ...", file=sys.stderr, flush=True)
        module = importlib.import_module(f"benchmarks.{name.replace('-', '_')}")
        records[name] = module.run()
        if arguments.save:
            save(name, records[name])
        if not arguments.json:
            print(f"\n{name}: {(module.__doc__ or '').splitlines()[0]}")
            print(table(records[name]["rows"]))
    if arguments.json:
        print(json.dumps(records, indent=1))


def table(rows: list[dict[str, Any]]) -> str:
    """Rows of one kind, aligned; numbers to three digits."""
    columns = list(dict.fromkeys(key for row in rows for key in row))
    cells = [columns] + [[_cell(row.get(column, "")) for column in columns] for row in rows]
    widths = [max(len(line[i]) for line in cells) for i in range(len(columns))]
    return "\n".join("  ".join(c.ljust(w) for c, w in zip(line, widths, strict=True)).rstrip() for line in cells)


def _cell(value: Any) -> str:
    return f"{value:.3g}" if isinstance(value, float) else str(value)


if __name__ == "__main__":
    main()
