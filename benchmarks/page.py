"""Write docs/performance.md and the table of dvaepp/kernels/README.md from the records: `python -m benchmarks.page`."""

import ast
from pathlib import Path
from typing import Any

from benchmarks.record import FOLDER, NAMES, ROOT, read
from dvaepp.kernels.policy import KERNELS

PAGE = ROOT / "docs" / "performance.md"
README = ROOT / "dvaepp" / "kernels" / "README.md"
START, END = "<!-- what each kernel earns: python -m benchmarks.page -->", "<!-- end -->"
WORTH = 0.05  # a kernel that earns less nowhere is deleted

TOP = """# Performance

Generated from the records in `benchmarks/records/` by `python -m benchmarks.page`; a test checks that it is current. A
record is made by `python -m benchmarks NAME --save` on a quiet machine and names the machine, the commit and the date.

## Compiled code and its switch

On a CPU in float32 compiled kernels take over from plain torch (`dvaepp/kernels/README.md`). `DVAEPP_KERNEL=off`
switches all of them off, and `DVAEPP_KERNEL=-gibbs,-winograd` those that are named: {names}.
`dvaepp doctor` tells whether they work on this machine.

## Threads

torch takes as many threads as there are cores; `OMP_NUM_THREADS=1` is the better choice where other work runs beside a
training, and where several trainings run at once (`dvaepp reproduce --workers N` starts one process for each, with one
thread). Two threads of one process wait for each other many times in a step. libgomp, the OpenMP of torch's wheels for
Linux, lets a waiting thread spin for milliseconds, which on a shared machine keeps the core from the very thread that
is waited for. The `dvaepp` command therefore sets `GOMP_SPINCOUNT=1000`, a few microseconds, for itself and its
workers, unless `GOMP_SPINCOUNT` or `OMP_WAIT_POLICY` is set already.

The variable is read once, when torch is loaded. `import dvaepp` sets nothing: the environment of a program belongs to
that program, and torch may be loaded before. In a program or notebook of your own, set it before the first import of
torch:

    export GOMP_SPINCOUNT=1000        # in the shell, or
    import os; os.environ.setdefault("GOMP_SPINCOUNT", "1000")

`dvaepp doctor` tells the number of threads, how they wait, and whether other work runs beside them.

## Measurements
"""


def page(folder: Path = FOLDER) -> str:
    """docs/performance.md: one section for each benchmark, also for one that has no record yet."""
    records = read(folder)
    sections = [_section(name, records.get(name)) for name in NAMES]
    return TOP.format(names=", ".join(f"`{name}`" for name in KERNELS)) + "\n" + "\n\n".join(sections) + "\n"


def _section(name: str, record: dict[str, Any] | None) -> str:
    source = (ROOT / "benchmarks" / f"{name.replace('-', '_')}.py").read_text()
    doc = ast.get_docstring(ast.parse(source))
    head = f"### {name}\n\n{doc}\n\n"
    if record is None:
        return f"{head}No record yet: `python -m benchmarks {name} --save` makes it."
    about = {key: value for key, value in record["result"].items() if isinstance(value, str | int | float)}
    facts = "".join(f"; {key.replace('_', ' ')}: {cell(value)}" for key, value in about.items())
    return f"{head}{origin(record)}{facts}.\n\n{table(record['result']['rows'])}"


def origin(record: dict[str, Any]) -> str:
    m = record["machine"]
    return f"{record['date']}, commit {record['commit']}, {m['processor']}, {m['cores']} cores, torch {m['torch']}"


def table(rows: list[dict[str, Any]]) -> str:
    columns = list(dict.fromkeys(key for row in rows for key in row))
    header = [column.replace("|", r"\|") for column in columns]  # a bar would end the cell
    lines = [header, ["---"] * len(columns), *([cell(row.get(c, "")) for c in columns] for row in rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def cell(value: Any) -> str:
    text = f"{value:.3g}" if isinstance(value, float) else "" if value is None else str(value)
    return text.replace("|", "\\|")


def earned(folder: Path = FOLDER) -> str:
    """The table of kernels/README.md: for each kernel the work that is slowed down most without it, on both threads."""
    record = read(folder).get("kernels")
    if record is None:
        return "No record yet: `python -m benchmarks kernels --save` makes it."
    lines = []
    for kernel in dict.fromkeys(row["kernel"] for row in record["result"]["rows"]):
        rows = [row for row in record["result"]["rows"] if row["kernel"] == kernel]
        best = max(rows, key=lambda row: row["slower without it by"])
        cells = {row["threads"]: f"{row['slower without it by']:+.0%}" for row in rows if row["in"] == best["in"]}
        verdict = "kept" if best["slower without it by"] >= WORTH else "earns less than 5 %"
        lines.append(f"| `{kernel}` | {best['in']} | {' | '.join(cells[n] for n in sorted(cells))} | {verdict} |")
    head = "| kernel off | what slows down most | one thread | two threads | |\n| --- | --- | --- | --- | --- |\n"
    return f"{origin(record)}:\n\n{head}" + "\n".join(lines)


def readme(folder: Path = FOLDER) -> str:
    """kernels/README.md with its table renewed."""
    before, rest = README.read_text().split(START)
    return f"{before}{START}\n\n{earned(folder)}\n\n{END}{rest.split(END)[1]}"


if __name__ == "__main__":
    PAGE.write_text(page())
    README.write_text(readme())
    print(f"wrote {PAGE.relative_to(ROOT)} and {README.relative_to(ROOT)}")
