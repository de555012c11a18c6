"""Progress of long work: a bar on a terminal, a line now and then elsewhere, silence for short work."""

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

PATIENCE = 2.0  # seconds of silence before anything is shown
INTERVAL = 30.0  # seconds between plain lines


@contextmanager
def progress(description: str, total: int, show: bool | None = None) -> Iterator[Callable[[int], None]]:
    """Yield `advance(n)`; `show` None shows on a terminal only, True always, False never. Goes to stderr."""
    terminal = sys.stderr.isatty()
    if show is False or (show is None and not terminal):
        yield lambda n: None
        return
    start = time.monotonic()
    done = 0
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
