"""The documentation site: it builds without a warning, every link leads somewhere, and the checks see what is wrong."""

import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

import dvaepp

ROOT = Path(__file__).parents[2]
EXECUTED = "smoothing,quantizer"  # the notebooks that continuous integration executes; `make docs` executes all


def _module(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


check_site = _module(ROOT / "docs/check_site.py")
plain_docstrings = _module(ROOT / "docs/extensions/plain_docstrings.py")


@pytest.mark.slow
@pytest.mark.timeout(900)  # half a minute of work, which a busy machine stretches
def test_the_site_builds_without_a_warning_and_has_no_dead_link(tmp_path: Path) -> None:
    site = tmp_path / "html"
    command = [sys.executable, "-m", "sphinx", "-q", "-W", "--keep-going", "-b", "html", str(ROOT / "docs"), str(site)]
    environment = os.environ | {"DVAEPP_NOTEBOOKS": EXECUTED, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    built = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert built.returncode == 0, built.stderr
    found = check_site.check(site)
    assert found.errors == []
    pages = "".join(page.read_text() for page in sorted((site / "api").glob("*.html")))
    assert [name for name in _public_names() if f'id="{name}"' not in pages] == []
    for name in EXECUTED.split(","):
        assert "cell_output" in (site / f"notebooks/{name}.html").read_text()


def _public_names() -> list[str]:
    """Those of the package, and those of its modules that are not described there already."""
    own = [name for name in dir(dvaepp) if not name.startswith("_")]
    modules = {name: value for name in own if isinstance(value := getattr(dvaepp, name), ModuleType)}
    found = [f"dvaepp.{name}" for name in own if name not in modules]
    for name, module in modules.items():
        found += [f"dvaepp.{name}.{each}" for each in getattr(module, "__all__", []) if each not in ("BinaryVAE",)]
    return found


@pytest.mark.parametrize(
    ("page", "what"),
    [
        ('<a href="missing.html">x</a>', "leads to no file"),
        ('<a href="other.html#nowhere">x</a>', "leads to no anchor"),
        ('<a href="#nowhere">x</a>', "leads to no anchor"),
        ('<script src="https://example.org/x.js"></script>', "from elsewhere"),
        ('<link rel="stylesheet" href="//example.org/x.css">', "from elsewhere"),
        ('<img src="missing.png">', "leads to no file"),
        ("<p>/home/somebody/runs</p>", "names the machine"),
        (f"<p>{sys.prefix}/lib</p>", "names the machine"),
        ('<a href="../outside.html">x</a>', "leads out of the site"),
    ],
)
def test_each_fault_of_a_page_is_seen(tmp_path: Path, page: str, what: str) -> None:
    (tmp_path / "outside.html").write_text("<p>x</p>")
    tmp_path = tmp_path / "site"
    tmp_path.mkdir()
    good = '<h1 id="top">x</h1><a href="other.html#top">x</a><a href="https://example.org">x</a>'
    (tmp_path / "other.html").write_text(good)
    assert check_site.check(tmp_path).errors == []
    assert check_site.check(tmp_path).external == {"https://example.org": ["other.html"]}
    (tmp_path / "page.html").write_text(page)
    errors = check_site.check(tmp_path).errors
    assert errors and all(what in error for error in errors)


@pytest.mark.parametrize(
    "rule", ["@import '//example.org/x.css';", "@font-face {src: url( https://example.org/x.woff )}"]
)
def test_a_style_that_loads_from_elsewhere_is_seen(tmp_path: Path, rule: str) -> None:
    (tmp_path / "page.html").write_text("<p>x</p>")
    style = tmp_path / "page.css"
    style.write_text("a {background: url(data:image/svg+xml,x)}")
    assert check_site.check(tmp_path).errors == []
    style.write_text(rule)
    (error,) = check_site.check(tmp_path).errors
    assert error.startswith("page.css: loads ") and "from elsewhere" in error


def test_a_folder_without_a_page_is_no_site(tmp_path: Path) -> None:
    assert check_site.check(tmp_path).errors == [f"{tmp_path.resolve()} has no page"]


def test_docstrings_show_what_they_say() -> None:
    text = "p(z|x) of `a_b`, and *c_.\n\n    r(ζ|0) = e^(-βζ)\n\nMore.\n\n>>> f(1)\n2"
    shown = "\n".join(plain_docstrings.as_rst(text.split("\n")))
    assert r"p(z\|x) of ``a_b``" in shown and r"\*c\_." in shown
    assert "::\n\n    r(ζ|0) = e^(-βζ)\n" in shown and ">>> f(1)\n2" in shown


def test_notebooks_are_stored_without_outputs() -> None:
    notebooks = sorted((ROOT / "docs/notebooks").iterdir())
    assert len(notebooks) >= 9
    for path in notebooks:
        assert path.suffix == ".md" and re.match(r"---\nfile_format: mystnb\n", path.read_text()), path


def test_the_readme_of_a_package_page_has_no_relative_link() -> None:
    for_package_page = _module(ROOT / "hatch_build.py").for_package_page
    readme, address = (ROOT / "README.md").read_text(), "https://example.org/dvaepp"
    relative = re.compile(r"\]\((?!https://)")
    assert relative.search(readme)
    plain, absolute = for_package_page(readme, ""), for_package_page(readme, address)
    assert not relative.search(plain) and not relative.search(absolute) and "Getting started" in plain
    assert f"]({address}/raw/main/docs/images/first-screen.png)" in absolute
    assert f"[Results]({address}/blob/main/docs/results.md)" in absolute
