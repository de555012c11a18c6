"""Progress of long work: a bar on a terminal and in a notebook, a line now and then elsewhere, else silence."""

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

PATIENCE = 2.0  # seconds of silence before anything is shown
INTERVAL = 30.0  # seconds between plain lines
REFRESH = 0.5  # seconds between two states of a notebook's bar
WIDTH = 30  # letters of that bar


@contextmanager
def progress(description: str, total: int, show: bool | None = None) -> Iterator[Callable[[int], None]]:
    """Yield `advance(n)`, shown on stderr: `show` None on a terminal or in a notebook, True always, False never."""
    terminal, notebook = sys.stderr.isatty(), in_notebook()
    if show is False or (show is None and not terminal and not notebook):
        yield lambda n: None
        return
    start = time.monotonic()
    done = 0
    if notebook:
        with _line_of_a_notebook(description, total) as move:
            yield move
        return
    if not terminal:
        last = start

        def line(n: int) -> None:
            nonlocal done, last
            done += n
            now = time.monotonic()
            if now - last >= INTERVAL:
                last = now
                left = (now - start) / done * (total - done)
                print(f"{description}: {done}/{total}, about {left:.0f} s left", file=sys.stderr, flush=True)

        yield line
        return
    from rich.console import Console
    from rich.progress import Progress

    bar = Progress(console=Console(stderr=True), transient=True)
    task = bar.add_task(description, total=total)

    def advance(n: int) -> None:
        nonlocal done
        done += n
        if not bar.live.is_started and time.monotonic() - start > PATIENCE:
            bar.start()
        bar.update(task, completed=done)

    try:
        yield advance
    finally:
        bar.stop()


def in_notebook() -> bool:
    """Whether a Jupyter kernel runs this: its output is no terminal, and yet somebody looks at it."""
    ipython: Any = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython is not None else None
    return shell is not None and type(shell).__name__ == "ZMQInteractiveShell"


@contextmanager
def _line_of_a_notebook(description: str, total: int) -> Iterator[Callable[[int], None]]:
    """One line that is written over itself: a notebook shows that without any widget installed."""
    start = last = time.monotonic()
    done = 0

    def advance(n: int) -> None:
        nonlocal done, last
        done += n
        now = time.monotonic()
        if now - start > PATIENCE and (now - last >= REFRESH or done >= total):
            last = now
            filled = WIDTH * done // max(1, total)
            left = (now - start) / max(1, done) * (total - done)
            bar = "█" * filled + "░" * (WIDTH - filled)
            print(
                f"\r{description} {bar} {done}/{total}, about {left:.0f} s left ", end="", file=sys.stderr, flush=True
            )

    yield advance
    if last > start:
        print(file=sys.stderr)
