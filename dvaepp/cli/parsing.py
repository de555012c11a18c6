"""The arguments of a command, and in one line what is wrong with them; tyro would say it in a box of several lines."""

import functools
import io
import re
from contextlib import redirect_stderr
from typing import Any

import tyro

from dvaepp.cli.commands import COMMANDS
from dvaepp.cli.help import CONFIG
from dvaepp.errors import UsageError

BOX = "╭╮╰╯│─ \t"
RULE = re.compile(r"^│? *─{3,}")


def parsed(name: str, words: list[str]) -> dict[str, Any]:
    """The arguments of a command by name, from the words behind it on the command line."""
    command = COMMANDS[name]

    @functools.wraps(command)
    def given(**arguments: Any) -> dict[str, Any]:
        return arguments

    told = io.StringIO()
    try:
        with redirect_stderr(told):
            return tyro.cli(given, prog=f"dvaepp {name}", args=words, config=CONFIG)
    except SystemExit as end:
        if end.code != 2:
            raise
    raise UsageError(f"{in_one_line(told.getvalue())}; `dvaepp {name} --help` explains")


def in_one_line(box: str) -> str:
    """What a box of tyro says, without its frame, its title and its help.

    >>> in_one_line("╭─ Unrecognized options ─╮\\n│ Unrecognized options: --nosuch, 3 │")
    'unknown: --nosuch 3'
    """
    parts: list[list[str]] = [[]]
    for line in box.splitlines()[1:]:
        if RULE.match(line):
            parts.append([])
        elif text := line.strip(BOX):
            parts[-1].append(text)
    said = " ".join(parts[0])
    if found := re.match(r"Unrecognized options: (.*)", said):
        near = re.search(r"Perhaps you meant: (\S+)", " ".join(parts[1])) if len(parts) > 1 else None
        return f"unknown: {found[1].replace(',', '')}" + (f"; did you mean {near[1]}?" if near else "")
    if found := re.match(r"Missing from [^:]*: (\S+) (.*)", said):
        return f"{found[1]} is missing: {found[2].replace(' (required)', '')}".rstrip(".")
    if found := re.match(r"invalid choice (.*) for argument '(.*)'\. Expected one of \((.*)\)", said):
        choices = sorted(set(re.findall(r"'([^']*)'", found[3])) - {"None"})
        return f"{found[2]} is one of {', '.join(choices)}, got {found[1]}"
    if found := re.match(r"Error parsing (\S+): .* from \[(.*?)\]", said):
        return f"{found[1]} cannot be {found[2]}"
    return said.rstrip(".")
