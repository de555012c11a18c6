"""The page on log Z, run as shown."""

import pytest

from tests.docs.test_examples import _run


def test_the_page_on_log_z_says_what_happens(capsys: pytest.CaptureFixture[str]) -> None:
    names = _run("docs/log_partition.md")
    assert names["estimate"].diagnostics["warnings"] == []
    assert names["truth"].value == pytest.approx(124.1, abs=0.01)
    assert names["fooled"].value == pytest.approx(69.3, abs=0.05)
    assert names["fooled"].diagnostics["r_hat"] < 1.005 and names["fooled"].diagnostics["warnings"] == []
    assert names["seen"].lower_bound == pytest.approx(124.1, abs=0.01) and len(names["seen"].warnings) == 2
    assert names["mixed"].warnings == []
    assert "truth 124.1, tempering 69.3" in capsys.readouterr().out
