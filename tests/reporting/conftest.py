"""Small runs to report on, each trained once: an RBM prior, convolutional models with and without one, an estimator."""

import shutil
from pathlib import Path

import pytest

from dvaepp.cli import main
from tests.training.toy import halves

CONVOLUTIONAL = {
    "model.image_size": "8",
    "model.down1": '["4d", "4d"]',
    "model.down2": '["4d"]',
    "model.upsample": '["4u"]',
    "model.upsamples": '[["4u"], ["4u"]]',
    "model.local_groups": "5",
    "training.steps": "6",
    "training.batch_size": "10",
    "training.validation_images": "20",
}
FEEDFORWARD = {"training.steps": "60", "chains.num_chains": "20", "chains.num_sweeps": "2"}
RUNS = {
    "rbm": (["table2.rbm", "layers=2", "linear=false"], {**FEEDFORWARD, "model.groups": "[4,4]"}),
    "rebar": (["table1.rebar"], {**FEEDFORWARD, "model.groups": "[6]"}),
    "convolutional": (["table3.rbm", "size=small"], CONVOLUTIONAL),
    "continuous": (["table3.continuous", "size=small"], CONVOLUTIONAL),
}


@pytest.fixture(scope="session")
def images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return halves(tmp_path_factory.mktemp("data"))


@pytest.fixture(scope="session")
def trained(images: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Run directories that no test writes into; the first is evaluated."""
    folders = {}
    for name, (recipe, changes) in RUNS.items():
        folder = tmp_path_factory.mktemp("runs") / name
        settings = {"data.path": str(images), "training.validate_every": "0.34", **changes}
        sets = [part for key, value in settings.items() for part in ("--set", f"{key}={value}")]
        main(["train", *recipe, "--run-dir", str(folder), *sets])
        folders[name] = folder
    main(["evaluate", str(folders["rbm"]), "--samples", "20"])
    return folders


@pytest.fixture
def run(trained: dict[str, Path], tmp_path: Path) -> Path:
    """A copy of the RBM run, to break."""
    return Path(shutil.copytree(trained["rbm"], tmp_path / "run"))
