"""How a command ends that did not get its work done: one line on stderr, and the exit code."""

import os
import sys
from typing import NoReturn

from dvaepp.errors import UsageError, to_stderr


def quiet_end(error: BrokenPipeError) -> NoReturn:
    """End without a word when nobody reads our output any more (`dvaepp recipes | head`), as other commands do."""
    if not _unread():
        fail(error)  # another pipe was broken
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # Python writes what is left at its end
    sys.exit(141)  # 128 + SIGPIPE


def _unread() -> bool:
    """Whether the reading end of standard output is closed."""
    import select

    try:
        poll = select.poll()
        poll.register(sys.stdout.fileno(), 0)
        return any(event & select.POLLERR for _, event in poll.poll(0))
    except (AttributeError, OSError, ValueError):  # no poll on this system, or standard output is no file
        return False


def fail(error: BaseException) -> NoReturn:
    if isinstance(error, KeyboardInterrupt):
        to_stderr("dvaepp: interrupted")
        sys.exit(130)
    # our own messages about files are sentences already: the number of the error in front of them helps nobody
    told = error.strerror if isinstance(error, OSError) and error.strerror and error.filename is None else str(error)
    message = " ".join(told.split()) or type(error).__name__
    expected = isinstance(error, (ValueError, OSError))
    hint = "" if expected else f" ({type(error).__name__}; --debug shows the traceback)"
    to_stderr(f"dvaepp: {message}{hint}")
    sys.exit(2 if isinstance(error, UsageError) else 1)
