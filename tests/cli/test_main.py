import os
import subprocess
import sys
from pathlib import Path

import pytest

import dvaepp
from dvaepp import __version__, cli
from dvaepp.cli import main, training
from dvaepp.errors import visible
from dvaepp.training import train
from tests.training.toy import recipe, stripes


@pytest.mark.parametrize("name", ["smoothing", "inverse-cdf"])
def test_figure_writes_a_picture_and_says_where(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "new" / f"{name}.png"
    main(["figure", name, "--out", str(out)])
    assert out.read_bytes().startswith(b"\x89PNG")
    assert capsys.readouterr().out == f"wrote {out}\n"
    assert [p.name for p in out.parent.iterdir()] == [out.name]  # nothing left over


def _exit_code(*arguments: str) -> int:
    with pytest.raises(SystemExit) as caught:
        main(list(arguments))
    return int(caught.value.code or 0)


def test_bad_usage_exits_with_2(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert _exit_code("figure", "nosuch") == 2
    assert _exit_code("figure", "smoothing", "--device", "nosuch") == 2
    assert "device 'nosuch' cannot be used here" in capsys.readouterr().err
    assert _exit_code("figure", "smoothing", "--out", str(tmp_path / "x.nosuch")) == 2
    assert "use an ending such as .png" in capsys.readouterr().err


def test_a_failure_is_one_line_and_exits_with_1(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").write_text("in the way")
    assert _exit_code("figure", "smoothing", "--out", str(tmp_path / "file" / "x.png")) == 1
    error = capsys.readouterr().err
    assert error.startswith("dvaepp: ") and error.count("\n") == 1 and "file" in error


def test_what_a_terminal_would_obey_is_shown_written_out(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Colours, a bell, text from right to left and bytes that are no letters, in the name of a folder."""
    name = "a\x1b[31mred\x07\u202eb\udcff"
    assert _exit_code("sample", str(tmp_path / name)) == 2
    error = capsys.readouterr().err
    shown = r"a\x1b[31mred\x07\u202eb\udcff"
    assert error.startswith(f"dvaepp: {tmp_path}/{shown} is not a run directory: there is no such folder, and no model")
    assert error.count("\n") == 1


def test_what_can_be_printed_stays_as_it_is() -> None:
    text = "Größe 3 × 4, β = ∞ in 日本"
    assert visible(text) == text and visible("a\tb\nc\\") == "a\\tb\\nc\\"


def test_lines_said_while_working_are_written_out_too(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    made = recipe(stripes(tmp_path), steps=2)
    run = train(made, tmp_path / "run\x1b]0;title\x07")
    assert "stripes: 480 training images" in capsys.readouterr().err
    (run / "checkpoints" / "best.json").write_text("damaged")
    dvaepp.load(run)
    error = capsys.readouterr().err
    assert "run\\x1b]0;title\\x07" in error and "\x1b" not in error and error.count("\n") == 1


def test_debug_shows_the_traceback_and_keeps_the_exit_code(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert _exit_code("figure", "smoothing", "--debug", "--out", str(tmp_path / "x.nosuch")) == 2
    error = capsys.readouterr().err
    assert error.startswith("Traceback") and "UsageError: cannot write a figure" in error
    assert error.splitlines()[-1].startswith("dvaepp: cannot write a figure")


@pytest.mark.parametrize(("closed", "code"), [(1, 0), (2, 2)])
def test_a_closed_output_changes_neither_the_exit_code_nor_the_other_output(closed: int, code: int) -> None:
    """`dvaepp recipes >&-`, as a daemon may start it: Python then has no standard output at all."""
    command = f"import os, sys; os.close({closed}); os.execv(sys.executable, [sys.executable, '-m', 'dvaepp', "
    command += "'recipes'])" if closed == 1 else "'nosuch'])"
    done = subprocess.run([sys.executable, "-c", command], capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (code, "", "")


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["--device", "meta"], "device 'meta' cannot be used here: "),
        (["--seed", str(10**30)], "--seed must be a number of at most 64 bits, got 1000"),
    ],
)
def test_what_torch_cannot_take_is_bad_usage(
    arguments: list[str], told: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert _exit_code("sample", "mnist-rbm", "--out", str(tmp_path / "x.png"), *arguments) == 2
    error = capsys.readouterr().err
    assert error.startswith(f"dvaepp: {told}") and error.count("\n") == 1


def test_version_and_module_form() -> None:
    out = subprocess.run([sys.executable, "-m", "dvaepp", "--version"], capture_output=True, text=True, check=True)
    assert out.stdout == f"dvaepp {__version__}\n"


def test_help_does_not_import_torch() -> None:
    code = "import dvaepp.cli, sys\ntry: dvaepp.cli.main(['--help'])\nfinally: assert 'torch' not in sys.modules"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0 and "figure" in done.stdout, done.stderr


@pytest.mark.parametrize(
    "command",
    [
        ["recipes"],
        ["data", "list"],
        ["show", "demo"],
        ["reproduce", "table2", "--show", "--results", "nowhere"],
        ["reproduce", "--help"],
        ["--version"],
        [],
    ],
    ids=" ".join,
)
def test_a_reader_that_goes_away_is_met_quietly(command: list[str], tmp_path: Path) -> None:
    """`dvaepp recipes | head`: no message and no traceback, not even from Python's own last flush."""
    read, write = os.pipe()
    os.close(read)
    done = subprocess.run(
        [sys.executable, "-m", "dvaepp", *command], stdout=write, stderr=subprocess.PIPE, text=True, cwd=tmp_path
    )
    os.close(write)
    assert done.returncode in (1, 141)
    assert not [
        line for line in done.stderr.splitlines() if "Error" in line or "Traceback" in line or "dvaepp:" in line
    ]


def test_a_broken_pipe_of_another_kind_is_told(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(debug: bool = False) -> None:
        raise BrokenPipeError("the pipe to a worker broke")

    monkeypatch.setitem(cli.COMMANDS, "recipes", fail)
    assert _exit_code("recipes") == 1
    assert capsys.readouterr().err == "dvaepp: the pipe to a worker broke\n"


def test_recipes_stand_in_columns(capsys: pytest.CaptureFixture[str]) -> None:
    """Descriptions and arguments begin in one column, right of the longest name."""
    main(["recipes"])
    lines = capsys.readouterr().out.splitlines()
    names = [line.split()[0] for line in lines[::2]]
    column = max(map(len, names)) + 1
    assert len(names) > 10 and all(line[column - 1] == " " and line[column] != " " for line in lines)
    assert all(line[:column].strip() == name for line, name in zip(lines[::2], names, strict=True))
    assert not any(line[:column].strip() for line in lines[1::2])


@pytest.mark.parametrize(
    "arguments, message",
    [
        (["evaluate", "mnist-rbm", "--samples", "0"], "--samples must be at least 1, got 0"),
        (["evaluate", "mnist-rbm", "--limit", "-3"], "--limit must be at least 1, got -3"),
        (["sample", "mnist-rbm", "--per-code", "0"], "--per-code must be at least 1, got 0"),
        (["inpaint", "mnist-rbm", "--completions", "0"], "--completions must be at least 1, got 0"),
        (["inpaint", "mnist-rbm", "--rounds", "3"], "--rounds must be at least 4, got 3"),
        (["encode", "mnist-rbm", "--out", "bits.npy"], "cannot write arrays to bits.npy: its name has to end in .npz"),
        (["index", "mnist-rbm", "--out", "index"], "cannot write arrays to index: its name has to end in .npz"),
        (["data", "check", "cifar"], "unknown data set 'cifar'; did you mean cifar10?"),
        (["data", "check", "qqq"], "unknown data set 'qqq'; there are caltech, cifar10, demo"),
    ],
)
def test_a_wrong_value_is_told_by_the_name_of_its_option(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert _exit_code(*arguments) == 2
    assert capsys.readouterr().err.startswith(f"dvaepp: {message}")


def test_a_table_without_records_says_where_it_looked(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    main(["reproduce", "table5", "--show", "--results", str(tmp_path)])
    assert f"there are no records of table5 in {tmp_path}" in capsys.readouterr().err


def test_the_modules_of_a_recipe_stand_in_columns(capsys: pytest.CaptureFixture[str]) -> None:
    main(["show", "demo"])
    *rows, memory = capsys.readouterr().err.splitlines()
    assert memory.startswith("memory: at most") and len({len(row) for row in rows}) == 1
    assert rows[0].split() == ["module", "output", "parameters"]  # no blocks in this model
    column = rows[0].index("output")
    assert all(row[column - 1] == " " for row in rows) and rows[1][column:].startswith("200 ")


@pytest.mark.parametrize(
    ("error", "shown"), [(0.0, ""), (2e-5, " ± 2e-05"), (5e-4, " ± 0.001"), (0.0142, " ± 0.014"), (1.5, " ± 1.500")]
)
def test_an_error_bar_of_log_z_is_never_shown_as_zero(error: float, shown: str) -> None:
    assert training._error_bar(error) == shown
