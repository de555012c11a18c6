"""Bad usage is told in one line that names the argument; what fits is parsed as it would be without us."""

from pathlib import Path

import pytest

from dvaepp.cli.parsing import parsed
from dvaepp.errors import UsageError

WRONG = {
    "evaluate x --beta foo": "--beta is one of inf, training, got 'foo'",
    "evaluate x --limit ten": "--limit cannot be 'ten'",
    "evaluate x --nosuch 3": "unknown: --nosuch 3",
    "evaluate x --sampels 3": "unknown: --sampels 3; did you mean --samples?",
    "evaluate x --limit": "Missing value for argument '--limit'. Expected 1 values",
    "evaluate": "RUN is missing: A run directory, or one of `dvaepp models`",
    "data lst": "action is one of check, fetch, list, got 'lst'",
}


@pytest.mark.parametrize("width", ["40", "80", "300"])
@pytest.mark.parametrize("line", WRONG)
def test_bad_usage_is_one_line_at_any_width(line: str, width: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", width)
    name, *words = line.split()
    with pytest.raises(UsageError) as error:
        parsed(name, words)
    assert str(error.value) == f"{WRONG[line]}; `dvaepp {name} --help` explains"


def test_what_fits_is_parsed() -> None:
    found = parsed("train", ["table2.rbm", "layers=2", "linear=false", "--set", "a=1", "--set", "b=2", "--resume"])
    assert found["recipe"] == "table2.rbm" and found["arguments"] == ("layers=2", "linear=false")
    assert found["set_"] == ["a=1", "b=2"] and found["resume"] and found["run_dir"] is None
    assert parsed("evaluate", ["runs/x", "--samples", "5"])["run"] == Path("runs/x")
