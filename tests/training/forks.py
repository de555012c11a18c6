"""Work in a process of its own, forked from this one: torch is there already, so that hundreds of them are cheap."""

import os
import re
import signal
import sys
import time
import traceback
from collections.abc import Callable


class Fork:
    """A child that runs `work`; its stderr can be read line by line."""

    def __init__(self, work: Callable[[], object]) -> None:
        read, write = os.pipe()
        self.pid = os.fork()
        if self.pid == 0:
            os.close(read)
            _child(work, write)
        os.close(write)
        self._errors = open(read)
        self.text = ""

    def until(self, pattern: str) -> str:
        """The next line that matches."""
        for line in self._errors:
            self.text += line
            if re.search(pattern, line):
                return line
        raise AssertionError(f"ended without {pattern!r}: {self.text[-2000:]}")

    def send(self, number: signal.Signals) -> None:
        os.kill(self.pid, number)

    def wait(self) -> int:
        """Read to the end and return the exit code, negative for a signal."""
        with self._errors as errors:
            self.text += errors.read()
        return os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])


def _child(work: Callable[[], object], write: int) -> None:
    code = 1
    try:
        signal.setitimer(signal.ITIMER_REAL, 0)
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGALRM):
            signal.signal(number, signal.SIG_DFL)
        os.dup2(write, 2)
        sys.stderr = open(2, "w", buffering=1, closefd=False)
        work()
        code = 0
    except SystemExit as stop:
        code = stop.code if isinstance(stop.code, int) else 1
    except BaseException:
        traceback.print_exc()
        time.sleep(0.01)
    finally:
        os._exit(code)
