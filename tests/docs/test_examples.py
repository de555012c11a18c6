"""The code that the documentation shows, run as shown."""

import json
import os
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def _run(page: str, changes: dict[str, str] | None = None) -> dict:
    """Run the code of a page, with pieces of it changed: fewer steps, say."""
    text = (ROOT / page).read_text()
    for piece, other in (changes or {}).items():
        assert text.count(piece) == 1, f"{page} has {piece!r} {text.count(piece)} times"
        text = text.replace(piece, other)
    code = "\n".join(re.findall(r"```python\n(.*?)```", text, re.DOTALL))
    namespace: dict = {}
    exec(compile(code, page, "exec"), namespace)
    return namespace


def test_readme_examples_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    names = _run("README.md", {"steps=3000": "steps=20", "samples=1000)": "samples=5, limit=50)"})
    assert "log p(x) = -" in capsys.readouterr().out and names["result"]["log_partition"]["method"] == "exact"
    assert len(list(names["run"].glob("samples/*.png"))) == 2
    assert names["logits"].grad.shape == (100, 200)
    assert ((names["nu"] >= 0) & (names["nu"] <= 1)).all()


def test_readme_links_to_files_that_exist() -> None:
    links = re.findall(r"\]\(([^)#]+)\)", (ROOT / "README.md").read_text())
    assert len(links) > 10
    assert [link for link in links if "://" not in link and not (ROOT / link).is_file()] == []


def test_getting_started() -> None:
    names = _run("docs/getting_started.md")
    assert names["pictures"].shape == names["again"].shape == (16, 1, 28, 28) and names["bits"].shape == (16, 200)


def test_smoothing_tutorial_learns(capsys: pytest.CaptureFixture[str]) -> None:
    names = _run("docs/tutorial_smoothing.md")
    assert names["after"] > names["before"] + 2
    assert names["accuracy"] > 0.9
    print(capsys.readouterr().out)


def test_rbm_tutorial_learns() -> None:
    names = _run("docs/tutorial_rbm.md")
    assert names["estimate"].method == "exact"
    assert names["bound"] > -3.5  # untrained it is near -5.8, and no bound can pass -(log 4 + the noise's entropy)


def test_own_networks_tutorial_is_killed_resumed_evaluated_and_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("STEPS", "32")
    monkeypatch.setenv("K", "5")
    monkeypatch.setenv("RUN", str(tmp_path / "run"))
    monkeypatch.setenv("DVAEPP_DATA", os.environ.get("DVAEPP_DATA", str(ROOT.parent / "shared/data")))
    if not (Path("/usr/share/datasets/fashion-mnist").exists() or Path(os.environ["DVAEPP_DATA"], "mnist").exists()):
        pytest.skip("neither Fashion-MNIST nor MNIST lies here")
    names = _run("docs/tutorial_own_networks.md")
    assert "ended with 143" in capsys.readouterr().out
    assert names["result"]["log_likelihood"] > -600 and names["result"]["standard_error"] > 0
    assert names["bits"].shape == (1, 64) and names["pictures"].shape == (16, 1, 28, 28)
    page = names["page"].read_text()
    assert "each beside its reconstruction" in page and "could not be loaded" not in page
    steps = [json.loads(line)["step"] for line in (tmp_path / "run/metrics.jsonl").read_text().splitlines()]
    assert max(steps) == 32


def test_own_data_page_says_what_it_prints(capsys: pytest.CaptureFixture[str]) -> None:
    _run("docs/own_data.md")
    assert capsys.readouterr().out.strip() in (ROOT / "docs/own_data.md").read_text()


def test_page_on_priors() -> None:
    names = _run("docs/priors.md")
    assert abs(names["estimate"].value - names["exact"].value) < 5 * names["estimate"].standard_error
    assert (names["rest"][:, :5] == 1).all() and names["marginals"].shape == (20,)


def test_page_on_models() -> None:
    names = _run("docs/models.md")
    assert names["again"].shape == (10, 1, 28, 28)


def test_bounds_page_says_what_it_prints(capsys: pytest.CaptureFixture[str]) -> None:
    found = list(_run("docs/bounds.md")["found"].values())
    assert found == sorted(found), "Sec. 5, relaxed, K = 5, K = 50"
    assert capsys.readouterr().out.strip() in (ROOT / "docs/bounds.md").read_text()


def test_paper_map_names_what_exists() -> None:
    """Every `file.py::test` in the map is a test, and every dotted name an attribute."""
    text = (ROOT / "docs/paper_map.md").read_text()
    last = ""
    for path, name in re.findall(r"`([\w/]+\.py)?(?:::(\w+))?`", text):
        last = path or last
        if not (path or name):
            continue
        source = (ROOT / "tests" / last).read_text()
        assert not name or f"def {name}(" in source, f"{last}::{name}"
    folders = "smoothing|distributions|reporting|priors|objectives|estimators|samplers|log_partition|models|networks"
    folders += "|training|evaluation"
    for dotted in re.findall(rf"`((?:{folders})[\w.]*)`", text):
        _resolve(f"dvaepp.{dotted}")


def _resolve(dotted: str) -> object:
    import importlib

    parts = dotted.split(".")
    for cut in range(len(parts), 0, -1):
        try:
            found: object = importlib.import_module(".".join(parts[:cut]))
        except ModuleNotFoundError:
            continue
        for attribute in parts[cut:]:
            found = getattr(found, attribute)
        return found
    raise AssertionError(dotted)


def test_readme_names_the_commands_ci_runs() -> None:
    assert "make test" in (ROOT / "README.md").read_text()
    assert "make test" in (ROOT / ".ci/run").read_text()
    targets = re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
    for target in re.findall(r"(?:^|`)make (\w+)", (ROOT / "README.md").read_text(), re.MULTILINE):
        assert target in targets, target
