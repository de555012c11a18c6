"""What test_half_precision.py runs: a model trained for a few steps, then in float32 and in narrower types.

Numbers are of sums over 36 pixels and a few dozen units of about 25 nats; bfloat16 keeps 8 bits and float16 11, so that
weights and activations are off by 0.4 % and 0.05 % each. Stated tolerances are 1 % and 0.3 % of the number for means
over images. A single image may differ by a nat or two, because a bit that is drawn near its threshold may flip.
"""

import copy
import json
import sys
from pathlib import Path

import torch
from torch import Tensor

from dvaepp import runs, training
from dvaepp.models.base import Model
from dvaepp.models.noise import BatchNoise
from dvaepp.objectives import boltzmann_kl, joint, marginal, rolfe_kl
from dvaepp.priors import RBM
from dvaepp.smoothing import Exponential
from tests.training import toy


def _bound(model: Model, objective: str, x: Tensor) -> Tensor:
    noise = BatchNoise(torch.Generator().manual_seed(1), x.device)
    with torch.no_grad():
        terms = model.terms(x, Exponential(8.0, validate_args=False), noise, objective=objective, log_z=5.0)
    assert terms.log_likelihood.dtype == terms.kl.dtype == torch.float32
    return terms.log_likelihood - terms.kl.sum(0)


def _close(found: Tensor, expected: Tensor, of_mean: float, each: float) -> None:
    assert found.isfinite().all()
    torch.testing.assert_close(found.mean(), expected.mean(), rtol=of_mean, atol=0.02)
    torch.testing.assert_close(found, expected, rtol=0, atol=each)


def main(name: str, folder: Path) -> None:
    images = toy.stripes(folder)
    recipe = toy.recipe(images, name, 6)
    trained = runs.load(training.train(recipe, folder / "run", say=toy.quiet), say=toy.quiet)
    x = runs.dataset_of(recipe).images("test")[:40]
    seeded = lambda: torch.Generator().manual_seed(2)  # noqa: E731
    objective = recipe.training.objective
    expected = _bound(trained.model, objective, x)
    likelihood = trained.log_likelihood(x, 20, seeded())
    with torch.autocast("cpu", torch.bfloat16):
        _close(_bound(trained.model, objective, x), expected, 0.01, 1.5)
        _close(trained.log_likelihood(x, 20, seeded()), likelihood, 0.02, 1.5)
    print("autocast")
    for dtype, of_mean, each in ((torch.bfloat16, 0.02, 2.0), (torch.float16, 0.003, 1.0)):
        half = copy.deepcopy(trained).to(dtype)
        _close(_bound(half.model, objective, x.to(dtype)), expected, of_mean, each)
        _close(half.log_likelihood(x, 20, seeded()), likelihood, of_mean, each)
        bits = half.encode(x)
        assert (bits.float() == trained.encode(x)).float().mean() > 0.97
        for picture in (half.decode(bits, seeded()), half.reconstruct(x, seeded()), half.sample(2, seeded())):
            assert picture.isfinite().all()
        print(str(dtype).removeprefix("torch.float16").removeprefix("torch.") or "half")
    _densities()
    print("densities")
    wide, narrow = (_reconstructions(images, name, folder, precision) for precision in ("float32", "bfloat16"))
    torch.testing.assert_close(narrow, wide, rtol=0.02, atol=0.1)
    print("training")


def _reconstructions(images: Path, name: str, folder: Path, precision: str) -> Tensor:
    """Of a few steps; weights stay float32."""
    recipe = toy.recipe(images, name, 6, training__precision=precision)
    run = training.train(recipe, folder / precision, say=toy.quiet)
    assert all(p.dtype == torch.float32 for p in runs.load(run, say=toy.quiet).model.parameters())
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    found = torch.tensor([line["reconstruction"] for line in lines if "reconstruction" in line])
    assert len(found) == 6 and found.isfinite().all()
    return found


def _densities() -> None:
    """Bounds of given half-precision logits are those of the same logits in float32."""
    g = torch.Generator().manual_seed(0)
    rbm, smoothing = RBM(3, 3), Exponential(8.0)
    torch.nn.init.normal_(rbm.weight, generator=g)
    logits = [(3 * torch.randn(5, 3, generator=g)).bfloat16() for _ in range(2)]
    priors = [torch.randn(3, generator=g).bfloat16(), torch.randn(5, 3, generator=g).bfloat16()]
    zeta = [torch.rand(5, 3, generator=g).bfloat16() for _ in range(2)]
    wide = [[t.float() for t in part] for part in (logits, priors, zeta)]
    pairs = [
        (boltzmann_kl(rbm, logits, zeta, smoothing, 0.0), boltzmann_kl(rbm, wide[0], wide[2], smoothing, 0.0)),
        (rolfe_kl(rbm, logits, zeta, 0.0), rolfe_kl(rbm, wide[0], wide[2], 0.0)),
        (joint(logits, priors), joint(wide[0], wide[1])),
        (marginal(logits, priors, zeta, smoothing), marginal(wide[0], wide[1], wide[2], smoothing)),
    ]
    for found, expected in pairs:
        assert found.dtype == torch.float32
        torch.testing.assert_close(found, expected)


if __name__ == "__main__":
    torch.set_num_threads(1)
    main(sys.argv[1], Path(sys.argv[2]))
