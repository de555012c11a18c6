"""The scales partition the image, and p(x|ζ, h) is a distribution: sums over every image of small canvases."""

import itertools
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import pytest
import torch
from scipy import stats
from torch import Tensor, nn

from dvaepp.models.decoder import Canvas, Decoder
from dvaepp.models.likelihoods import likelihood

CANVASES = [
    (28, 28, 32, 4),
    (32, 32, 32, 4),
    (16, 16, 16, 3),
    (5, 7, 8, 3),
    (8, 8, 8, 1),
    (1, 1, 4, 3),
    (27, 31, 32, 4),
]


def _scale_of(row: int, column: int, steps: list[int]) -> int:
    """The coarsest scale whose grid holds a pixel of the canvas."""
    return min(i for i, step in enumerate(steps) if row % step == 0 and column % step == 0)


@pytest.mark.parametrize("height, width, size, num_scales", CANVASES)
def test_every_pixel_is_scored_exactly_once(height: int, width: int, size: int, num_scales: int) -> None:
    canvas = Canvas(height, width, size, num_scales)
    steps = [2**i for i in reversed(range(num_scales))]
    assert canvas.scales == [size // step for step in steps]
    scored = np.zeros((size, size), dtype=int)
    for index, step in enumerate(steps):
        mask = canvas.new(index).numpy()
        assert mask.shape == (size // step,) * 2
        for r, c in zip(*np.nonzero(mask), strict=True):
            scored[r * step, c * step] += 1
            assert _scale_of(r * step, c * step, steps) == index
    top, left = (size - height) // 2, (size - width) // 2
    inside = np.zeros((size, size), dtype=int)
    inside[top : top + height, left : left + width] = 1
    assert np.array_equal(scored, inside)
    expected = [[_scale_of(top + r, left + c, steps) for c in range(width)] for r in range(height)]
    assert canvas.owner().tolist() == expected


def test_a_28x28_image_has_few_pixels_at_the_coarsest_scale() -> None:
    """Padding takes 7 of the 16: the numbers of docs/paper_map.md."""
    canvas = Canvas(28, 28, 32, 4)
    assert [int(canvas.new(index).sum()) for index in range(4)] == [9, 40, 147, 588]


def test_a_16x16_image_has_the_colours_of_the_papers_figure() -> None:
    """Its drawing instructions: rows and columns modulo 4, red 0, green 1, blue 2."""

    def colour(row: int, column: int) -> int:
        if row % 4 == 0:
            return {0: 0, 2: 1}.get(column % 4, 2)
        return 1 if row % 4 == 2 and column % 2 == 0 else 2

    assert Canvas(16, 16, 16, 3).owner().tolist() == [[colour(r, c) for c in range(16)] for r in range(16)]


def test_padding_is_zero_and_comes_off_again() -> None:
    canvas = Canvas(28, 28, 32, 4)
    x = torch.rand(2, 1, 28, 28, generator=torch.Generator().manual_seed(0)) + 1
    padded = canvas.pad(x)
    assert torch.equal(padded[:, :, 2:30, 2:30], x) and torch.equal(canvas.crop(padded), x)
    assert padded.sum() == x.sum()
    assert torch.equal(canvas.at(padded, 4), padded[:, :, ::8, ::8])


# (canvas, resolution of the latents, context, upsamples): the coarsest map may lie at its scale or at twice it
ARCHITECTURES = {
    "4x4": (Canvas(4, 4, 4, 3), 1, ("3",), (("4u", "3"), ("3u",))),
    "4x4 from 2x2": (Canvas(4, 4, 4, 3), 2, ("3",), (("4",), ("3u",))),
    "3x3 in 4x4": (Canvas(3, 3, 4, 3), 2, ("3",), (("4",), ("3u",))),
    "2x2 in 4x4": (Canvas(2, 2, 4, 3), 1, ("3",), (("4u",), ("3u", "3"))),
    "3x2 in 4x4, context resizes": (Canvas(3, 2, 4, 2), 4, ("3d",), (("4u",),)),
}


def _decoder(name: str, conditional: bool) -> tuple[Decoder, Tensor]:
    """A decoder with all parameters random, in float64, and the features of one code."""
    canvas, resolution, context, upsamples = ARCHITECTURES[name]
    g = torch.Generator().manual_seed(3)
    decoder = Decoder(2, resolution, canvas, likelihood("bernoulli", 1), context, upsamples, 2, conditional, g).double()
    for parameter in decoder.parameters():
        parameter.data.add_(0.5 * torch.randn(parameter.shape, generator=g))
    return decoder, torch.randn(1, 2, resolution, resolution, generator=g, dtype=torch.float64)


def _all_images(canvas: Canvas) -> Tensor:
    height, width = canvas.owner().shape
    bits = torch.tensor(list(itertools.product((0.0, 1.0), repeat=height * width)), dtype=torch.float64)
    return bits.reshape(-1, 1, height, width)


@torch.no_grad()
def _log_probabilities(decoder: Decoder, features: Tensor) -> Tensor:
    images = _all_images(decoder.canvas)
    pieces = [decoder(features.expand(len(x), -1, -1, -1), decoder.canvas.pad(x)) for x in images.split(8192)]
    return torch.cat(pieces)


@pytest.mark.parametrize("conditional", [True, False])
@pytest.mark.parametrize("name", ARCHITECTURES)
def test_the_likelihood_sums_to_one_over_all_images(name: str, conditional: bool) -> None:
    """2^16 images for 4x4."""
    log_p = _log_probabilities(*_decoder(name, conditional))
    assert log_p.exp().sum().item() == pytest.approx(1, abs=1e-10)
    assert log_p.exp().max() < 0.9 and log_p.std() > 0.5, "a flat or certain likelihood shows nothing"


def test_a_mask_that_scores_pixels_twice_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    def everything(self: Canvas, index: int) -> Tensor:
        inside = torch.zeros(self.size, self.size, dtype=torch.bool)
        inside[self.rows, self.columns] = True
        return self.at(inside, self.scales[index])

    monkeypatch.setattr(Canvas, "new", everything)
    total = _log_probabilities(*_decoder("4x4", True)).exp().sum().item()
    assert abs(total - 1) > 0.01


@contextmanager
def _seen(modules: nn.ModuleList, outputs: bool) -> Iterator[list[Tensor]]:
    """Every call's output, or its input."""
    found: list[Tensor] = []
    hooks = [
        m.register_forward_hook(lambda _, i, o: found.append((o if outputs else i[0]).detach().clone()))
        for m in modules
    ]
    yield found
    for hook in hooks:
        hook.remove()


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_each_scale_depends_on_coarser_pixels_alone_and_scores_its_own(name: str) -> None:
    """The output at a scale, pixel by pixel: flipping a pixel of this or a finer scale must leave it as it was."""
    decoder, features = _decoder(name, True)
    canvas = decoder.canvas
    owner = canvas.owner()
    height, width = owner.shape
    top, left = (canvas.size - height) // 2, (canvas.size - width) // 2
    x = (torch.rand(1, 1, height, width, generator=torch.Generator().manual_seed(0)) < 0.5).double()

    def outputs(image: Tensor) -> list[Tensor]:
        with _seen(decoder.heads, outputs=True) as found, torch.no_grad():
            total.append(decoder(features, canvas.pad(image)).item())
        return found

    total: list[float] = []
    before = outputs(x)
    expected = 0.0
    for r, c in itertools.product(range(height), range(width)):
        scale = owner[r, c].item()
        step = canvas.size // canvas.scales[scale]
        logit = before[scale][0, 0, (top + r) // step, (left + c) // step].item()
        expected -= np.logaddexp(0, -logit if x[0, 0, r, c] == 1 else logit)
    assert total[0] == pytest.approx(expected, abs=1e-10)
    reached = set()
    for r, c in itertools.product(range(height), range(width)):
        flipped = x.clone()
        flipped[0, 0, r, c] = 1 - flipped[0, 0, r, c]
        for scale, (a, b) in enumerate(zip(before, outputs(flipped), strict=True)):
            if scale <= owner[r, c]:
                assert torch.equal(a, b), (r, c, scale)
            elif not torch.equal(a, b):
                reached.add((owner[r, c].item(), scale))
    present = set(owner.flatten().tolist())
    assert reached == {(i, j) for i in present for j in range(len(canvas.scales)) if i < j}


@pytest.mark.parametrize("conditional", [True, False])
@pytest.mark.parametrize("name", ["2x2 in 4x4", "3x2 in 4x4, context resizes"])
def test_generated_images_have_the_likelihood_they_are_given(name: str, conditional: bool) -> None:
    """20 000 images against the enumerated probabilities: chi-squared, failure rate 1e-4, fixed seed."""
    decoder, features = _decoder(name, conditional)
    p = _log_probabilities(decoder, features).exp().numpy()
    number = 20_000
    with torch.no_grad():
        x = decoder.generate(features.expand(number, -1, -1, -1), torch.Generator().manual_seed(1), mean=False)
    code = x.flatten(1).long() @ (2 ** torch.arange(x[0].numel() - 1, -1, -1))
    counts = np.bincount(code.numpy(), minlength=len(p))
    rare = p * number < 5
    observed, expected = np.append(counts[~rare], counts[rare].sum()), number * np.append(p[~rare], p[rare].sum())
    observed, expected = observed[expected > 0], expected[expected > 0]
    statistic = ((observed - expected) ** 2 / expected).sum()
    assert statistic < stats.chi2.isf(1e-4, len(expected) - 1)
    uniform = number / len(p)
    assert ((counts - uniform) ** 2 / uniform).sum() > 10 * len(p), "a uniform likelihood shows nothing"


def test_generation_feeds_what_it_has_drawn_and_zero_as_padding() -> None:
    decoder, features = _decoder("3x3 in 4x4", True)
    canvas = decoder.canvas
    with _seen(decoder.inputs, outputs=False) as fed, torch.no_grad():
        x = decoder.generate(features.expand(50, -1, -1, -1), torch.Generator().manual_seed(1), mean=False)
    assert x.shape == (50, 1, 3, 3) and set(x.unique().tolist()) == {0.0, 1.0}
    padded = torch.zeros(50, 1, 4, 4, dtype=torch.float64)
    padded[:, :, canvas.rows, canvas.columns] = x
    assert [tuple(f.shape[2:]) for f in fed] == [(1, 1), (2, 2)]
    for f, step in zip(fed, (4, 2), strict=True):
        assert torch.equal(f, padded[:, :, ::step, ::step])


def test_a_mean_image_shows_the_coarser_pixels_that_the_finer_ones_have_seen() -> None:
    """One consistent image: pixels of coarser scales as they were drawn and fed, means at the finest scale alone."""
    decoder, features = _decoder("3x3 in 4x4", True)
    canvas = decoder.canvas
    with _seen(decoder.inputs, outputs=False) as fed, torch.no_grad():
        shown = decoder.generate(features.expand(50, -1, -1, -1), torch.Generator().manual_seed(1))
    padded = torch.zeros(50, 1, 4, 4, dtype=torch.float64)
    padded[:, :, canvas.rows, canvas.columns] = shown
    for f, step in zip(fed, (4, 2), strict=True):
        assert torch.equal(f, padded[:, :, ::step, ::step])
    finest = shown[..., canvas.owner() == 2]
    assert ((finest > 0) & (finest < 1)).all()


@pytest.mark.parametrize("conditional", [True, False])
def test_mean_images_average_to_the_marginals(conditional: bool) -> None:
    """Each pixel's mean given drawn coarser pixels, 20 000 times: within 5 standard errors of the enumerated E[x]."""
    decoder, features = _decoder("2x2 in 4x4", conditional)
    p = _log_probabilities(decoder, features).exp()
    marginal = (p[:, None, None, None] * _all_images(decoder.canvas)).sum(0)
    with torch.no_grad():
        shown = decoder.generate(features.expand(20_000, -1, -1, -1), torch.Generator().manual_seed(1))
    error = shown.std(0) / 20_000**0.5
    assert ((shown.mean(0) - marginal).abs() <= 5 * error + 1e-9).all()
    assert (error > 1e-5).any() == conditional, "finer means vary with the coarser pixels, factorial ones never"
