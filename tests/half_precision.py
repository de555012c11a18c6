"""What test_half_precision.py runs: a model trained for a few steps, then in float32 and in narrower types.

bfloat16 keeps 8 bits and float16 11. Log weights and bounds of an image are about -30 nats, and rounding moves them by
`Limits.each` at most where both models score the same latents; the limits are about twice what was seen, over all
models: 0.17 and 0.033. Models that draw bits of their own also differ where a uniform number falls between the two
probabilities of a bit. One such bit can move log p(x) of an image by a nat or more, so that flipped bits are counted,
and log p(x) from a model's own draws is compared in the mean over images alone.
"""

import copy
import json
import sys
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from dvaepp import runs, training
from dvaepp.models.inpainting import Latents
from dvaepp.models.noise import BatchNoise
from dvaepp.models.trained import Trained
from dvaepp.objectives import boltzmann_kl, joint, marginal, rolfe_kl
from dvaepp.priors import RBM
from dvaepp.smoothing import Exponential
from tests.training import toy


class Limits(NamedTuple):
    """How far a narrow type may be from float32, in nats of an image unless it says otherwise."""

    each: float  # a log weight or a bound
    flipped: float  # the share of bits that are drawn otherwise
    own_mean: float  # the mean over images of log p(x), each model with its own draws

    def check(self, found: Tensor, expected: Tensor) -> None:
        """Of numbers that follow from the same latents or the same noise without a threshold."""
        torch.testing.assert_close(found, expected, rtol=0, atol=self.each)
        torch.testing.assert_close(found.mean(), expected.mean(), rtol=0, atol=self.each / 5)


BFLOAT16 = Limits(each=0.35, flipped=2e-3, own_mean=0.15)
HALF = Limits(each=0.07, flipped=1e-3, own_mean=0.03)
SAMPLES = 20


class Numbers(NamedTuple):
    """What is compared, each for float32 and for a narrow type."""

    bound: Tensor
    latents: Latents
    log_weights: Tensor  # of latents that were drawn in float32
    log_likelihood: Tensor
    code: Tensor


@torch.no_grad()
def _numbers(trained: Trained, objective: str, x: Tensor, scored: Latents | None = None) -> Numbers:
    """Of images x; the weights are those of the `scored` latents, or of the model's own."""
    model = trained.model
    dtype = next(model.decoder.parameters()).dtype
    noise = BatchNoise(torch.Generator().manual_seed(1), x.device)
    terms = model.terms(x.to(dtype), Exponential(8.0, validate_args=False), noise, objective=objective, log_z=5.0)
    assert terms.log_likelihood.dtype == terms.kl.dtype == torch.float32
    images = x.to(dtype).repeat(SAMPLES, 1, 1, 1).reshape(-1, *model.sample_shape)
    latents = model.draw_latents(images, _seeded())
    weights = model.latent_log_weight(images, [z.to(dtype) for z in scored or latents])
    likelihood = trained.log_likelihood(x, SAMPLES, _seeded())
    return Numbers(terms.log_likelihood - terms.kl.sum(0), latents, weights.float(), likelihood, trained.encode(x))


def _compare(found: Numbers, expected: Numbers, limits: Limits) -> None:
    limits.check(found.bound, expected.bound)
    limits.check(found.log_weights, expected.log_weights)
    own = found.log_likelihood
    assert own.isfinite().all() and (own - expected.log_likelihood).mean().abs() < limits.own_mean
    pairs = [pair for pair in zip(found.latents, expected.latents, strict=True) if len(pair[1].unique()) == 2]
    flipped = torch.cat([(a.float() != b).flatten() for a, b in pairs]).float().mean()
    assert flipped < limits.flipped, f"{flipped:.5f} of the bits flipped"
    assert (found.code.float() != expected.code).float().mean() < 0.01


def _seeded() -> torch.Generator:
    return torch.Generator().manual_seed(2)


def main(name: str, folder: Path) -> None:
    images = toy.stripes(folder)
    recipe = toy.recipe(images, name, 6)
    trained = runs.load(training.train(recipe, folder / "run", say=toy.quiet), say=toy.quiet)
    x = runs.dataset_of(recipe).images("test")[:40]
    objective = recipe.training.objective
    expected = _numbers(trained, objective, x)
    with torch.autocast("cpu", torch.bfloat16):
        _compare(_numbers(trained, objective, x, expected.latents), expected, BFLOAT16)
    print("autocast")
    for word, dtype, limits in (("bfloat16", torch.bfloat16, BFLOAT16), ("half", torch.float16, HALF)):
        half = copy.deepcopy(trained).to(dtype)
        _compare(_numbers(half, objective, x, expected.latents), expected, limits)
        bits = half.encode(x)
        for picture in (half.decode(bits, _seeded()), half.reconstruct(x, _seeded()), half.sample(2, _seeded())):
            assert picture.isfinite().all()
        print(word)
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
