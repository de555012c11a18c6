"""What `dvaepp --help` and `dvaepp COMMAND --help` show, from the docstrings of the commands.

The first paragraph of a docstring is the command's line in the overview. Indented lines stand as they are; an
"Examples:" section comes last and holds whole commands, which are meant to be copied.
"""

import io
import shutil
import textwrap
from contextlib import redirect_stdout, suppress
from inspect import getdoc

import tyro

from dvaepp.cli.commands import COMMANDS, GROUPS, Command
from dvaepp.version import __version__

EXAMPLES = "\n\nExamples:\n"
WIDEST = 100
CONFIG = (tyro.conf.FlagCreatePairsOff,)


def overview() -> str:
    """Every command with its summary, in groups."""
    groups = "\n\n".join("\n".join([title, *map(_row, commands)]) for title, commands in GROUPS.items())
    return f"""usage: dvaepp [-h] [--version] COMMAND [ARGUMENTS ...]

dvaepp {__version__}: generative models with binary latent variables (DVAE++, ICML 2018).

{groups}

`dvaepp COMMAND --help` explains a command and shows examples. To begin:
  dvaepp sample mnist-rbm
  dvaepp train demo --run-dir runs/demo
  dvaepp evaluate runs/demo --samples 100 --limit 100
  dvaepp report runs/demo"""


def _row(command: Command) -> str:
    column = max(map(len, COMMANDS)) + 4
    text = f"  {command.__name__}".ljust(column) + summary(command)
    return textwrap.fill(text, _width(), subsequent_indent=" " * column)


def summary(command: Command) -> str:
    """What a command does, in one sentence."""
    return " ".join(_document(command).partition("\n\n")[0].split())


def examples(command: Command) -> list[str]:
    """The commands that the docstring gives as examples, one line each."""
    return [line.strip() for line in _document(command).partition(EXAMPLES)[2].splitlines() if line.strip()]


def explained(name: str) -> str:
    """The help of one command: its usage, what it does, examples, and tyro's table of its arguments.

    tyro would join the lines of a description anew and leave them as wide as they get, so it is put in here.
    """
    written = io.StringIO()
    with redirect_stdout(written), suppress(SystemExit):
        tyro.cli(COMMANDS[name], prog=f"dvaepp {name}", description="", args=["--help"], config=CONFIG)
    usage, *arguments = [line.rstrip() for line in written.getvalue().rstrip().splitlines()]
    return "\n".join([usage, "", _description(COMMANDS[name]), *arguments])


def _description(command: Command) -> str:
    """The paragraphs of the docstring at the width of the terminal, and the examples."""
    paragraphs = _document(command).partition(EXAMPLES)[0].split("\n\n")
    shown = [part if part.startswith(" ") else textwrap.fill(part, _width()) for part in paragraphs]
    if lines := examples(command):
        shown.append("\n".join(["Examples:", *(f"  {line}" for line in lines)]))
    return "\n\n".join(shown)


def _document(command: Command) -> str:
    return getdoc(command) or ""


def _width() -> int:
    return min(shutil.get_terminal_size().columns, WIDEST)
