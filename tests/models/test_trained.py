"""What a trained model takes for images."""

from pathlib import Path

import numpy as np
import pytest
import torch

from dvaepp import runs, training
from dvaepp.models.trained import Trained
from dvaepp.priors import RBM
from dvaepp.samplers import pcd
from tests.training import toy


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Trained:
    folder = tmp_path_factory.mktemp("run")
    return runs.load(training.train(toy.recipe(toy.stripes(folder), steps=2), folder / "run", say=toy.quiet))


def test_reprs_say_what_was_trained_and_carried(trained: Trained) -> None:
    assert repr(trained).startswith("Trained(") and "on stripes, step 2: 8 global units, images (1, 6, 6)" in repr(
        trained
    )
    assert repr(pcd.init(RBM(3, 3), 10)) == "Chains(10 of 6 units, 0 sweeps)"


def test_arrays_are_taken_like_tensors(trained: Trained) -> None:
    x = (np.random.RandomState(0).rand(5, 6, 6) < 0.5).astype(np.float32)
    for given in (x, x.astype(np.uint8), x.astype(bool), x.astype(np.float64)):
        assert torch.equal(trained.encode(given), trained.encode(torch.from_numpy(x)))
    assert trained.log_likelihood(x, 3).shape == (5,) and trained.reconstruct(x).shape == (5, 1, 6, 6)


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int64, torch.float32])
def test_levels_of_0_to_255_are_refused_with_the_remedy(trained: Trained, dtype: torch.dtype) -> None:
    x = torch.randint(0, 256, (5, 6, 6), generator=torch.Generator().manual_seed(0)).to(dtype)
    for use in (trained.encode, trained.reconstruct, lambda x: trained.log_likelihood(x, 2)):
        with pytest.raises(ValueError, match=r"whole numbers up to 25\d, .* x / 255"):
            use(x)
    trained.reconstruct(x / 255)


def test_a_tensor_in_place_of_a_list_of_groups_is_refused(tmp_path: Path) -> None:
    """In a process of its own: here types are checked at run time, before the function can speak."""
    import subprocess
    import sys

    code = (
        "import torch\nfrom dvaepp.objectives import boltzmann_kl, joint, marginal\nfrom dvaepp.priors import RBM\n"
        "from dvaepp.smoothing import Exponential\nx = torch.zeros(4, 4)\n"
        "for call in (lambda: boltzmann_kl(RBM(2, 2), x, x, Exponential(8.0), 0.0), lambda: joint(x, x),\n"
        "             lambda: marginal([x], [x], x, Exponential(8.0))):\n"
        "    try:\n        call()\n    except ValueError as error:\n        print(error)\n"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=tmp_path)
    assert found.stdout.splitlines() == [
        "logits must be a list with one tensor per group; for one group give [logits]",
        "logits must be a list with one tensor per group; for one group give [logits]",
        "zeta must be a list with one tensor per group; for one group give [zeta]",
    ]
