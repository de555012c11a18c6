"""Completion scripts for shells, made from the signatures of the commands.

A word completes to what its argument can be: a command, an option, a name out of a list; and else to a file name, which
the shell does itself. The scripts hold these lists, so that a shell need not start Python at every press of Tab.
"""

import typing
from collections.abc import Iterable, Iterator
from inspect import signature
from typing import Any, Literal, NamedTuple

import tyro

from dvaepp.cli.commands import COMMANDS, Command
from dvaepp.cli.help import summary

POSITIONAL = typing.get_args(tyro.conf.Positional[int])[1]

BASH = """_dvaepp() {{
    local command=${{COMP_WORDS[1]}} before=${{COMP_WORDS[COMP_CWORD-1]}} word=${{COMP_WORDS[COMP_CWORD]}} words=""
    if ((COMP_CWORD == 1)); then
        words="{commands} --help --version"
    else
        case "$command $word" in
{options}
        *) case "$command $before" in
{values}
        *" --"*) ;;
{names}
        esac ;;
        esac
    fi
    COMPREPLY=($(compgen -W "$words" -- "$word"))
}}
complete -o default -F _dvaepp dvaepp"""


class Argument(NamedTuple):
    """One argument of a command: the option that names it, or none for a word, and the values it can take, if few."""

    option: str | None
    values: tuple[str, ...]


def script(shell: Literal["bash", "zsh", "fish"]) -> str:
    """The script that a shell evaluates when it starts."""
    if shell == "fish":
        return "\n".join(_fish())
    return ("autoload -U +X bashcompinit && bashcompinit\n" if shell == "zsh" else "") + _bash()


def _bash() -> str:
    values, options, names = [], [], []
    for name, command in COMMANDS.items():
        found = _arguments(command)
        options.append(_case(f'"{name} -"*', [each.option for each in found if each.option] + ["--help"]))
        values += [_case(f'"{name} {each.option}"', each.values) for each in found if each.option and each.values]
        if words := [value for each in found if each.option is None for value in each.values]:
            names.append(_case(f'"{name} "*', words))
    cases = {"options": options, "values": values, "names": names}
    return BASH.format(commands=" ".join(COMMANDS), **{part: "\n".join(lines) for part, lines in cases.items()})


def _case(pattern: str, words: Iterable[str]) -> str:
    return f'        {pattern}) words="{" ".join(words)}" ;;'


def _fish() -> Iterator[str]:
    for name, command in COMMANDS.items():
        yield f"complete -c dvaepp -f -n __fish_use_subcommand -a {name} -d {_quoted(summary(command))}"
        seen = f"complete -c dvaepp -n '__fish_seen_subcommand_from {name}'"
        for each in _arguments(command):
            words = f" -x -a {_quoted(' '.join(each.values))}" if each.values else ""
            if each.option:
                yield f"{seen} -l {each.option.removeprefix('--')}{words}"
            elif words:
                yield f"{seen}{words.replace(' -x', '')}"


def _quoted(text: str) -> str:
    """The text as one word of fish, where a quotation mark within one is written with a backslash."""
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"


def _arguments(command: Command) -> list[Argument]:
    hints = typing.get_type_hints(command, include_extras=True)
    return [
        Argument(
            None if POSITIONAL in typing.get_args(hints[name]) else "--" + name.strip("_").replace("_", "-"),
            tuple(_choices(hints[name])) or _names(command, name),
        )
        for name in signature(command).parameters
    ]


def _choices(hint: Any) -> Iterator[str]:
    """The words of the Literal in a type, however deep."""
    if typing.get_origin(hint) is Literal:
        yield from typing.get_args(hint)
        return
    for part in typing.get_args(hint):
        yield from _choices(part)


def _names(command: Command, argument: str) -> tuple[str, ...]:
    """Names that the library knows: recipes, data sets, tables, shipped models."""
    from dvaepp import data, pretrained, recipes
    from dvaepp.reproduction import paper

    match command.__name__, argument:
        case "train" | "show", "recipe":
            return tuple(recipes.functions())
        case "data", "name":
            return tuple(data.names())
        case "reproduce", "table":
            return tuple(paper.TITLES)
        case _, "run" | "runs" | "other":
            return tuple(pretrained.names())
    return ()
