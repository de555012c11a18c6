"""What `--help` says: every command in a group, with a summary, examples that its parser takes, and honest brackets."""

import functools
import shlex
from inspect import Parameter, signature
from typing import Any

import pytest
import tyro

from dvaepp import __version__
from dvaepp.cli import COMMANDS, main
from dvaepp.cli.commands import GROUPS
from dvaepp.cli.help import CONFIG, examples, explained, overview, summary


@pytest.fixture(autouse=True)
def _narrow(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")


def test_the_overview_has_every_command_in_its_group_and_the_version() -> None:
    shown = overview()
    assert __version__ in shown and "--version" in shown
    assert list(COMMANDS) == [command.__name__ for group in GROUPS.values() for command in group]
    for title, group in GROUPS.items():
        part = shown.partition(f"\n{title}\n")[2].partition("\n\n")[0]
        rows = [line for line in part.splitlines() if line[2] != " "]
        assert [row.split()[0] for row in rows] == [command.__name__ for command in group]
        assert {len(row) - len(row[2:].partition(" ")[2].lstrip()) for row in rows} == {4 + max(map(len, COMMANDS))}


@pytest.mark.parametrize("name", COMMANDS)
def test_a_command_has_a_summary_and_an_example(name: str) -> None:
    assert summary(COMMANDS[name]).endswith(".") and len(summary(COMMANDS[name])) < 80
    assert any(f"dvaepp {name}" in line for line in examples(COMMANDS[name]))
    lines = explained(name).splitlines()
    assert lines[0].startswith(f"usage: dvaepp {name} [-h]")
    assert all(len(line) <= 80 for line in lines[1:] if not line.startswith("  dvaepp "))


@pytest.mark.parametrize("name", COMMANDS)
def test_examples_are_taken_by_the_parser(name: str) -> None:
    @functools.wraps(COMMANDS[name])
    def parsed(**arguments: Any) -> dict[str, Any]:
        return arguments

    for line in examples(COMMANDS[name]):
        words = [word for word in shlex.split(line, comments=True) if word != "eval"]
        if words[:2] == ["dvaepp", name]:  # the others hand a command to the shell
            words = words[2 : words.index(">")] if ">" in words else words[2:]
            assert tyro.cli(parsed, args=words, config=CONFIG)


@pytest.mark.parametrize("name", COMMANDS)
def test_the_usage_line_puts_optional_words_in_brackets(name: str) -> None:
    usage = explained(name).splitlines()[0]
    for parameter in signature(COMMANDS[name]).parameters.values():
        notes = getattr(parameter.annotation, "__metadata__", ())
        if tyro.conf.Positional[int].__metadata__[0] in notes:
            metavar = next((note.metavar for note in notes if getattr(note, "metavar", None)), None)
            if metavar:
                assert metavar in usage.split(" ", 2)[2]
                assert metavar.startswith("[") == (parameter.default is not Parameter.empty)


def test_nothing_is_said_of_defaults_that_mean_none_or_no() -> None:
    shown = "".join(map(explained, COMMANDS))
    assert "default: None" not in shown and "default: False" not in shown and "default: )" not in shown
    assert "(default: cpu)" in shown


def test_a_wrong_command_is_told_with_the_nearest_one(capsys: pytest.CaptureFixture[str]) -> None:
    for word, hint in (("sampel", "did you mean `dvaepp sample`?"), ("qqq", "`dvaepp --help` lists them")):
        with pytest.raises(SystemExit) as caught:
            main([word])
        assert caught.value.code == 2
        assert capsys.readouterr().err == f"dvaepp: there is no command {word!r}; {hint}\n"


def test_help_of_a_command_wherever_it_is_asked_for(capsys: pytest.CaptureFixture[str]) -> None:
    main(["sample", "--rows", "3", "-h"])
    assert capsys.readouterr().out == explained("sample") + "\n"
