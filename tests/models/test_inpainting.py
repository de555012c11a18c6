"""Completions follow the enumerated p(x_hidden | x_seen); a chain without one of its corrections is caught."""

import itertools

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn.functional import binary_cross_entropy_with_logits

from dvaepp.errors import UsageError
from dvaepp.models import inpainting
from dvaepp.models.inpainting import Latents, inpaint
from tests.samplers.states import P_VALUE, p_value

CHAINS = 20_000
UNITS, PIXELS = 3, 4


def _log_prob(logits: Tensor, x: Tensor) -> Tensor:
    return -binary_cross_entropy_with_logits(logits, x, reduction="none").sum(-1)


def _bits(logits: Tensor, generator: torch.Generator | None) -> Tensor:
    return (torch.rand(logits.shape, generator=generator, dtype=logits.dtype) < torch.sigmoid(logits)).to(logits.dtype)


class Toy:
    """Three latents, four pixels; the last two depend on the first two if `conditional`, as finer scales do on coarser.

    The encoder is a map of its own that has never been trained.
    """

    def __init__(self, conditional: bool) -> None:
        g = torch.Generator().manual_seed(3)
        self.prior = torch.randn(UNITS, generator=g)
        self.encoder, self.decoder = (
            torch.randn(PIXELS, UNITS, generator=g),
            2 * torch.randn(UNITS, PIXELS, generator=g),
        )
        self.finer = 2.5 * torch.randn(2, 2, generator=g) if conditional else torch.zeros(2, 2)
        self.conditional = conditional

    def _logits(self, x: Tensor, z: Tensor) -> Tensor:
        coarse = x.reshape(-1, PIXELS)[:, :2] - 0.5
        return z @ self.decoder + torch.cat([torch.zeros_like(coarse), coarse @ self.finer], 1)

    def draw_latents(self, x: Tensor, generator: torch.Generator | None) -> Latents:
        return [_bits(x.reshape(-1, PIXELS) @ self.encoder, generator)]

    def latent_log_weight(self, x: Tensor, latents: Latents) -> Tensor:
        z, flat = latents[0], x.reshape(-1, PIXELS)
        log_q = _log_prob(flat @ self.encoder, z)
        return _log_prob(self.prior.expand_as(z), z) + _log_prob(self._logits(x, z), flat) - log_q

    def redraw(self, x: Tensor, seen: Tensor, latents: Latents, generator: torch.Generator | None) -> Tensor:
        flat, known = x.reshape(-1, PIXELS).clone(), seen.reshape(-1, PIXELS)
        for scale in (slice(0, 2), slice(2, 4)):
            drawn = _bits(self._logits(flat, latents[0])[:, scale], generator)
            flat[:, scale] = torch.where(known[:, scale], flat[:, scale], drawn)
        return flat.reshape(x.shape)

    def log_seen(self, x: Tensor, seen: Tensor, latents: Latents) -> Tensor:
        flat = x.reshape(-1, PIXELS)
        each = -binary_cross_entropy_with_logits(self._logits(x, latents[0]), flat, reduction="none")
        return (each * seen.reshape(-1, PIXELS)).sum(1)

    def expected_pixels(self, x: Tensor, latents: Latents) -> Tensor:
        return x if self.conditional else torch.sigmoid(self._logits(x, latents[0])).reshape(x.shape)

    def posterior(self, x: Tensor, seen: Tensor) -> np.ndarray:
        """p(x_hidden | x_seen) over the states of the hidden pixels, by summing over all latents."""
        hidden = ~seen
        states = torch.tensor(list(itertools.product([0.0, 1.0], repeat=int(hidden.sum()))))
        z = torch.tensor(list(itertools.product([0.0, 1.0], repeat=UNITS)))
        log_prior = _log_prob(self.prior.expand_as(z), z)
        weights = []
        for state in states:
            full = x.clone()
            full[hidden] = state
            log_p = log_prior + _log_prob(self._logits(full.expand(len(z), -1), z), full.expand(len(z), -1))
            weights.append(torch.logsumexp(log_p, 0).exp().item())
        return np.array(weights) / sum(weights)


class _Uncorrected(Toy):
    """Broken: every proposal of the encoder is as good as any other."""

    def latent_log_weight(self, x: Tensor, latents: Latents) -> Tensor:
        return torch.zeros(len(latents[0]))


class _AcceptsAllPixels(Toy):
    """Broken: the decoder's draw with seen pixels held is taken for a draw given them."""

    def log_seen(self, x: Tensor, seen: Tensor, latents: Latents) -> Tensor:
        return torch.zeros(len(latents[0]))


X = torch.tensor([1.0, 0.0, 1.0, 0.0])
MASKS = {
    "seen above": [True, True, False, False],
    "seen below": [False, False, True, True],
    "mixed": [True, False, False, True],
}


def _p_value(toy: Toy, seen: Tensor) -> float:
    shape = (1, 1, 2, 2)
    start = torch.zeros(CHAINS, 1, 2, 2)
    generator = torch.Generator().manual_seed(1)
    found = inpaint(
        toy,
        X.reshape(shape),
        seen.reshape(shape),
        start=start,
        num_samples=CHAINS,
        num_rounds=40,
        num_proposals=2,
        generator=generator,
    )
    flat = found.samples.reshape(CHAINS, PIXELS)
    assert (flat[:, seen] == X[seen]).all() and 0 < found.moved < 1
    p = toy.posterior(X, seen)
    hidden = np.array(list(itertools.product([0.0, 1.0], repeat=int((~seen).sum()))))
    if type(toy) is Toy:  # the mean is that of the same distribution: 5 standard errors of one round's chains
        error = 5 * 0.5 / np.sqrt(CHAINS)
        assert np.abs(found.mean.reshape(-1)[~seen].numpy() - p @ hidden).max() < error
    return p_value(flat[:, ~seen], p)


@pytest.mark.parametrize("conditional", [False, True], ids=["independent pixels", "pixels scale by scale"])
@pytest.mark.parametrize("mask", MASKS)
def test_completions_follow_the_posterior(mask: str, conditional: bool) -> None:
    """Chi-squared of 20 000 chains over the hidden pixels, failure rate 1e-6."""
    assert _p_value(Toy(conditional), torch.tensor(MASKS[mask])) > P_VALUE


@pytest.mark.parametrize(("broken", "mask"), [(_Uncorrected, "seen above"), (_AcceptsAllPixels, "seen below")])
def test_a_missing_correction_is_caught(broken: type[Toy], mask: str) -> None:
    assert _p_value(broken(conditional=True), torch.tensor(MASKS[mask])) < P_VALUE


def test_the_toy_satisfies_what_inpainting_asks_for() -> None:
    assert isinstance(Toy(True), inpainting.Completes)


@pytest.mark.parametrize("options", [{"num_samples": 0}, {"num_proposals": 0}, {"num_rounds": 3}])
def test_bad_numbers_are_named(options: dict[str, int]) -> None:
    x = X.reshape(1, 1, 2, 2)
    with pytest.raises(UsageError, match="inpainting needs num_samples and num_proposals of at least 1"):
        inpaint(Toy(False), x, x > 0, start=x, **options)
