"""Failures that are the caller's to mend, and how a line about them is shown."""

import sys


class UsageError(ValueError):
    """The request cannot be carried out as given; the command line exits with 2."""


def visible(text: str) -> str:
    """The text with what a terminal would obey rather than show written out: ESC becomes the four letters \\x1b.

    Messages quote names of files and values of recipes, and those may come from a stranger.
    """
    return "".join(letter if letter.isprintable() else letter.encode("unicode_escape").decode() for letter in text)


def to_stderr(line: str) -> None:
    """Where lines go that a caller did not ask to have elsewhere."""
    if sys.stderr is not None:  # where it is closed, `print` would take standard output instead
        print(visible(line), file=sys.stderr, flush=True)
