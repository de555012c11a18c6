"""What a trained model takes for images."""

from pathlib import Path
from unittest import mock

import numpy as np
import pytest
import torch

from dvaepp import runs, training
from dvaepp.errors import UsageError
from dvaepp.log_partition import log_partition
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


@pytest.mark.parametrize("wrong", [-1.0, 1.7, float("nan")])
def test_numbers_that_no_image_has_are_refused(trained: Trained, wrong: float) -> None:
    x = torch.zeros(5, 6, 6)
    x[0, 0, 0], x[1, 1, 1] = wrong, 0.5
    for use in (trained.encode, trained.reconstruct, lambda x: trained.log_likelihood(x, 2)):
        with pytest.raises(ValueError, match=r"x has numbers from .* this model sees images in \[0, 1\]"):
            use(x)


def test_hidden_pixels_may_hold_anything_and_seen_ones_may_not(trained: Trained) -> None:
    x, seen = np.zeros((2, 6, 6), np.float32), np.ones((6, 6), bool)
    x[:, 0, 0], seen[0, 0] = np.nan, False
    assert trained.inpaint(x, seen, num_rounds=4).mean.isfinite().all()
    with pytest.raises(ValueError, match=r"x has numbers from nan"):
        trained.inpaint(x, ~seen, num_rounds=4)


def test_the_likelihood_of_grey_images_comes_with_a_warning(trained: Trained) -> None:
    with pytest.warns(UserWarning, match="cross-entropy and no log p"):
        trained.log_likelihood(torch.full((2, 6, 6), 0.5), 2)


def test_a_seed_gives_one_likelihood_in_the_first_call_and_in_later_ones(trained: Trained) -> None:
    prior, x = trained.model.boltzmann, torch.zeros(3, 6, 6)
    assert prior is not None
    fresh = Trained(trained.model, trained.recipe, trained.record)
    found = []
    with mock.patch("dvaepp.models.trained.log_partition", lambda prior, _, g: log_partition(prior, "ais", g)):
        for _ in range(2):
            found.append(fresh.log_likelihood(x, 5, torch.Generator().manual_seed(3)))
    assert torch.equal(*found)


def test_bits_are_taken_from_arrays_and_in_one_shape(trained: Trained) -> None:
    bits = trained.encode(torch.zeros(2, 6, 6))
    assert torch.equal(trained.decode(bits.bool().numpy()), trained.decode(bits))
    with pytest.raises(ValueError, match=r"bits must have shape \(batch, 8\), got \(8,\)"):
        trained.decode(bits[0])
    for wrong in (2 * bits - 1, torch.full_like(bits, torch.nan)):
        with pytest.raises(ValueError, match="bits must be 0 or 1, .*bits > 0 makes them of -1 and 1"):
            trained.decode(wrong)


def test_images_of_another_size_are_the_callers_to_mend(trained: Trained) -> None:
    with pytest.raises(UsageError, match=r"x must be \(batch, 1, 6, 6\), got \(2, 5, 5\)"):
        trained.encode(torch.zeros(2, 5, 5))


def test_no_images_have_no_likelihoods_and_no_samples_are_refused(trained: Trained) -> None:
    assert trained.log_likelihood(torch.zeros(0, 6, 6), 2).shape == (0,)
    for use in (trained.sample, trained.sample_code):
        with pytest.raises(ValueError, match="n must be at least 1, got 0"):
            use(0)


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
