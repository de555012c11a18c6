"""Completions follow the enumerated p(x_hidden | x_seen); a chain without one of its corrections is caught."""

import itertools
from typing import Any, get_args

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn.functional import binary_cross_entropy_with_logits

from dvaepp.errors import UsageError
from dvaepp.evaluation.hidden import Hidden, hidden_log_likelihood, seen_pixels
from dvaepp.models import BinaryVAE, inpainting
from dvaepp.models.feedforward import FeedForward
from dvaepp.models.inpainting import Latents, inpaint
from dvaepp.models.trained import Trained
from dvaepp.priors import Factorial
from tests.models.test_dvaepp import _images, _tiny
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


# The library's models


def _feedforward(prior: str, **options: Any) -> FeedForward:
    """Four pixels and four units in two groups, with random parameters and an encoder that is unsure of itself."""
    g = torch.Generator().manual_seed(7)
    model = FeedForward(torch.full((1, 2, 2), 0.4), (2, 2), prior=prior, prior_options=options, generator=g)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            scale = 0.3 if name.startswith("encoders") else 1.5
            parameter.copy_(scale * torch.randn(parameter.shape, generator=g))
    return model.eval()


def _enumerated(model: FeedForward, x: Tensor, seen: Tensor) -> np.ndarray:
    """p(x_hidden | x_seen) from the prior's probabilities of all z and the decoder's of all images."""
    z = torch.tensor(list(itertools.product([0.0, 1.0], repeat=4)))
    hidden = torch.tensor(list(itertools.product([0.0, 1.0], repeat=int((~seen).sum()))))
    images = x.repeat(len(hidden), 1)
    images[:, ~seen] = hidden
    with torch.no_grad():
        log_prior = model.prior.log_prob(z)
        pixels = model.decode(z).reshape(len(z), 1, PIXELS)
    log_pixels = (images * pixels.log() + (1 - images) * torch.log1p(-pixels)).sum(-1)
    weights = torch.logsumexp(log_prior[:, None] + log_pixels, 0).exp().double().numpy()
    return weights / weights.sum()


@pytest.mark.parametrize(
    ("prior", "options"), [("rbm", {}), ("boltzmann_machine", {"graph": "ring"}), ("directed", {}), ("factorial", {})]
)
def test_feedforward_models_complete_images(prior: str, options: dict[str, str]) -> None:
    """Chi-squared of 8000 chains against enumeration, failure rate 1e-6; another image's posterior does not pass."""
    model, seen, chains = _feedforward(prior, **options), torch.tensor(MASKS["mixed"]), 8000
    x = X.reshape(1, 1, 2, 2)
    start = torch.zeros(chains, 1, 2, 2)
    generator = torch.Generator().manual_seed(1)
    known = seen.reshape(1, 1, 2, 2)
    found = inpaint(model, x, known, start=start, num_samples=chains, num_rounds=40, generator=generator)
    drawn = found.samples.reshape(chains, PIXELS)[:, ~seen]
    assert p_value(drawn, _enumerated(model, X, seen)) > P_VALUE
    assert p_value(drawn, _enumerated(model, 1 - X, seen)) < P_VALUE


kinds = pytest.mark.parametrize(
    "options",
    [{}, {"conditional": False}, {"global_kind": "bernoulli", "local_kind": "bernoulli"}, {"global_kind": "none"}],
    ids=str,
)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@kinds
def test_dvaepp_weighs_given_latents_as_evaluation_weighs_its_own(options: dict[str, Any], dtype: torch.dtype) -> None:
    model, x = _tiny(**options).to(dtype), _images().to(dtype)
    with torch.no_grad():
        latents = model.draw_latents(x, torch.Generator().manual_seed(3))
        expected = model.log_weights(x, None, torch.Generator().manual_seed(3))(1)[0]
        torch.testing.assert_close(model.latent_log_weight(x, latents), expected)
        other = model.draw_latents(x, torch.Generator().manual_seed(4))
        before = torch.get_rng_state()
        assert not torch.allclose(model.latent_log_weight(x, other), expected)
    assert torch.equal(torch.get_rng_state(), before)  # weights of given latents draw nothing


@kinds
def test_dvaepp_draws_hidden_pixels_with_the_seen_ones_held(options: dict[str, Any]) -> None:
    """The chance of an image is that of its seen pixels times that of its hidden ones, which are drawn with it.

    A hidden pixel of the coarsest scale depends on no other, so its frequency stays: 5 standard errors.
    """
    model, rows = _tiny(**options), 4000
    x, seen = _images(1).repeat(rows, 1, 1, 1), seen_pixels("top", (1, 4, 4)).expand(rows, -1, -1, -1)
    with torch.no_grad():
        latents = [
            group.expand(rows, *group.shape[1:])
            for group in model.draw_latents(x[:1], torch.Generator().manual_seed(0))
        ]
        drawn = model.redraw(x, seen, latents, torch.Generator().manual_seed(5))
        total = model.decoder(model._features_of(latents), model.canvas.pad(drawn))
        parts = model.log_seen(drawn, seen, latents) + model.log_seen(drawn, ~seen, latents)
        torch.testing.assert_close(parts, total)
        nothing = torch.zeros_like(seen)
        free = model.redraw(x, nothing, latents, torch.Generator().manual_seed(6))
    assert torch.equal(drawn[seen], x[seen])
    mean, expected = drawn[:, 0, 0, 0].mean(), free[:, 0, 0, 0].mean()
    assert abs(mean - expected) < 5 * (0.5 / rows) ** 0.5
    varies = model.log_seen(drawn, seen, latents).std() > 1e-4
    assert bool(varies) == model.decoder.conditional  # otherwise the seen pixels say nothing about the hidden ones


@pytest.mark.parametrize("conditional", [False, True])
def test_a_trained_model_completes_a_batch(conditional: bool) -> None:
    trained, x = Trained(_tiny(conditional=conditional), None, {}), _images(3)
    seen = seen_pixels("bottom", (1, 4, 4))
    found = trained.inpaint(x, seen, torch.Generator().manual_seed(0), num_samples=2, num_rounds=6, num_proposals=2)
    assert found.samples.shape == (2, 3, 1, 4, 4) and found.mean.shape == x.shape
    assert ((found.samples == x) | ~seen).all() and ((found.mean == x) | ~seen).all()
    nonsense = torch.where(seen, x, torch.nan)  # what is hidden is not looked at
    again = trained.inpaint(
        nonsense, seen, torch.Generator().manual_seed(0), num_samples=2, num_rounds=6, num_proposals=2
    )
    assert torch.equal(again.samples, found.samples)
    with pytest.raises(ValueError, match=r"seen must be a boolean mask of shape \(3, 1, 4, 4\) or \(1, 4, 4\), got"):
        trained.inpaint(x, seen.float())
    with pytest.raises(ValueError, match="seen must be a boolean mask"):
        trained.inpaint(x, seen[:, :3])


@pytest.mark.parametrize("hide", get_args(Hidden))
def test_about_half_or_a_quarter_is_hidden(hide: str) -> None:
    seen = seen_pixels(hide, (3, 28, 28), torch.Generator().manual_seed(0))
    share = 0.25 if hide == "centre" else 0.5
    assert seen.shape == (3, 28, 28) and abs((~seen).float().mean().item() - share) < 0.06
    assert (seen == seen[:1]).all()
    with pytest.raises(UsageError, match="what to hide must be one of bottom, top"):
        seen_pixels("all", (1, 4, 4))


def test_log_likelihood_of_hidden_pixels_by_hand() -> None:
    x, seen = torch.tensor([[[[1.0, 0.0]]]]), torch.tensor([[[False, True]]])
    found = hidden_log_likelihood(torch.full((1, 1, 1, 2), 0.25), x, seen)
    assert found.item() == pytest.approx(np.log(0.25))
    with pytest.raises(UsageError, match="binary"):
        hidden_log_likelihood(x, x / 2, seen)


def test_a_model_of_rows_completes_as_one_of_images_does() -> None:
    """Data given as rows of numbers: the same weights and noise give the same pictures, in the shape of images."""

    def made(sample_shape: tuple[int, ...]) -> Trained:
        torch.manual_seed(3)
        encoder = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(6, 4))
        model = BinaryVAE([encoder], torch.nn.Linear(4, 6), Factorial([4]))
        model.prepare(sample_shape, (1, 2, 3))
        return Trained(model, None, {})

    x = torch.tensor([[1.0, 0, 1, 0, 1, 0], [0.0, 0, 1, 1, 1, 0]])
    seen = torch.tensor([True, False, True, False, False, True])
    options = {"num_samples": 5, "num_rounds": 8}
    rows, images = (
        made(shape).inpaint(x.reshape(2, *shape), seen, torch.Generator().manual_seed(0), **options)
        for shape in ((6,), (1, 2, 3))
    )
    assert rows.samples.shape == (5, 2, 1, 2, 3) and rows.mean.shape == (2, 1, 2, 3)
    assert torch.equal(rows.samples, images.samples) and torch.equal(rows.mean, images.mean)
    assert (rows.samples.flatten(2)[..., seen] == x[:, seen]).all()
