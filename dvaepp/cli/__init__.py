"""The command line: one function per command, one file per group of them, and `commands.py` that lists them.

torch is imported only by the commands that need it, inside their functions, so that `--help` and completion are quick.
"""

import sys
import traceback
from difflib import get_close_matches

from dvaepp import spinning
from dvaepp.cli.commands import COMMANDS
from dvaepp.cli.failures import fail, quiet_end
from dvaepp.cli.help import explained, overview
from dvaepp.cli.parsing import parsed
from dvaepp.errors import UsageError
from dvaepp.version import __version__

HELP = {"-h", "--help"}


def main(argv: list[str] | None = None) -> None:
    """Parse, run, and turn a failure into one line: 2 for bad usage, 1 for a failure, 130 after SIGINT."""
    if argv is None:  # the command itself, not a program that calls it
        spinning.bound()
    arguments = sys.argv[1:] if argv is None else argv
    debug = "--debug" in arguments
    try:
        try:
            _run(arguments)
        finally:  # also after --help, which ends by SystemExit
            if sys.stdout is not None:  # it is None where standard output was closed from the start
                sys.stdout.flush()  # that nobody reads any more shows here, and not after the end of `main`
    except (Exception, KeyboardInterrupt) as error:
        if debug:
            traceback.print_exception(error)
        if isinstance(error, BrokenPipeError):
            quiet_end(error)
        fail(error)


def _run(arguments: list[str]) -> None:
    name, rest = (arguments or ["--help"])[0], arguments[1:]
    if name in HELP:
        print(overview())
    elif name == "--version":
        print(f"dvaepp {__version__}")
    elif name in COMMANDS and HELP & set(rest):
        print(explained(name))
    elif name in COMMANDS:
        COMMANDS[name](**parsed(name, rest))
    else:
        near = get_close_matches(name, COMMANDS, n=1)
        hint = f"did you mean `dvaepp {near[0]}`?" if near else "`dvaepp --help` lists them"
        raise UsageError(f"there is no command {name!r}; {hint}")
