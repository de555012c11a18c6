"""Signals that end or save a run between two steps rather than in the middle of one."""

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any


class Stopped(BaseException):
    """A signal came inside `Signals.raising`, so the work there was given up."""


ENDING = ("SIGTERM", "SIGINT", "SIGHUP")
SAVING = "SIGUSR1"  # batch systems can send it some time before they end a job


class Signals:
    """Signals set a flag, which the loop looks at between two steps, instead of ending the process at once.

    A second SIGINT does end it at once. A signal that is ignored when the run starts, as `nohup` ignores SIGHUP, stays
    ignored.
    """

    def __init__(self) -> None:
        self.received = 0
        self._save = False
        self._raising = False
        self._before: dict[int, Any] = {}

    def __enter__(self) -> "Signals":
        known = [getattr(signal, name) for name in (*ENDING, SAVING) if hasattr(signal, name)]
        for number in known:
            if signal.getsignal(number) is signal.SIG_IGN:
                continue
            try:
                self._before[number] = signal.signal(number, self._note)
            except ValueError:  # this is not the main thread, and Python handles signals only there
                break
        return self

    def save_asked(self) -> bool:
        """Whether a signal has asked for a checkpoint since this was last called."""
        asked, self._save = self._save, False
        return asked

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _note(self, number: int, frame: FrameType | None) -> None:
        if signal.Signals(number).name == SAVING:
            self._save = True
            return
        if self.received and number == signal.SIGINT:
            raise KeyboardInterrupt
        self.received = number
        if self._raising:
            raise Stopped

    @contextmanager
    def raising(self) -> Iterator[None]:
        """A context for long work that may be given up: inside it, a signal raises Stopped at once."""
        if self.received:
            raise Stopped
        self._raising = True
        try:
            yield
        finally:
            self._raising = False
