"""What is handed out: the sdist holds the whole project, and the wheel made from it the package and nothing else."""

import subprocess
import sys
import tarfile
import zipfile
from email.parser import Parser
from pathlib import Path, PurePosixPath

import pytest

import dvaepp
from dvaepp import pretrained

ROOT = Path(__file__).parents[1]
NEEDED = """py.typed version.py reporting/page.html viewer/page.html viewer/page.js viewer/page.css
kernels/gibbs.c kernels/winograd.h pretrained/mnist-rbm/recipe.json pretrained/mnist-rbm/evaluation.json
pretrained/mnist-rbm/checkpoints/best.json pretrained/mnist-rbm-2layers/checkpoints/best.json""".split()


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with an sdist of this tree, and a wheel of that sdist, as `python -m build` makes them."""
    out = tmp_path_factory.mktemp("dist")
    command = [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(out), str(ROOT)]
    subprocess.run(command, check=True, capture_output=True, timeout=280)
    return out


@pytest.fixture(scope="module")
def wheel(built: Path) -> zipfile.ZipFile:
    return zipfile.ZipFile(next(built.glob("*.whl")))


def _package() -> set[str]:
    """The files of the package in this tree."""
    found = (path for path in (ROOT / "dvaepp").rglob("*") if path.is_file() and "__pycache__" not in path.parts)
    return {path.relative_to(ROOT).as_posix() for path in found}


def test_the_wheel_holds_the_package_and_nothing_else(wheel: zipfile.ZipFile) -> None:
    about = f"dvaepp-{dvaepp.__version__}.dist-info/"
    names = {name for name in wheel.namelist() if not name.startswith(about)}
    assert names == _package()
    assert {f"dvaepp/{name}" for name in NEEDED} <= names
    tensors = [name for name in names if name.endswith(".safetensors")]
    assert len(tensors) == len(pretrained.names()) and all("/pretrained/" in name for name in tensors)


def test_its_metadata_say_what_the_project_says(wheel: zipfile.ZipFile) -> None:
    about = f"dvaepp-{dvaepp.__version__}.dist-info"
    found = Parser().parsestr(wheel.read(f"{about}/METADATA").decode())
    assert (found["Name"], found["Version"]) == ("dvaepp", dvaepp.__version__)
    assert found["License-Expression"] == "Apache-2.0" and f"{about}/licenses/LICENSE" in wheel.namelist()
    assert f"name: {found['Author']}\n" in (ROOT / "CITATION.cff").read_text()
    url = found["Project-URL"].partition(", ")[2]
    assert url in (ROOT / "CITATION.cff").read_text()
    assert {"demo", "hub", "view", "dev"} <= set(found.get_all("Provides-Extra"))
    assert "Typing :: Typed" in found.get_all("Classifier")
    assert wheel.read(f"{about}/entry_points.txt").decode().split() == [
        "[console_scripts]",
        "dvaepp",
        "=",
        "dvaepp.cli:main",
    ]


def test_the_sdist_holds_what_its_tests_need(built: Path) -> None:
    with tarfile.open(next(built.glob("*.tar.gz"))) as archive:
        names = {
            PurePosixPath(name).relative_to(f"dvaepp-{dvaepp.__version__}").as_posix() for name in archive.getnames()
        }
    assert names >= _package()
    others = [*(ROOT / "tests").rglob("*.py"), *(ROOT / "docs").glob("*.md"), *(ROOT / "results").glob("*.*")]
    assert names >= {path.relative_to(ROOT).as_posix() for path in others}
    assert {".ci/run", "Makefile", "constraints.txt", "README.md", "LICENSE", "pyproject.toml"} <= names
