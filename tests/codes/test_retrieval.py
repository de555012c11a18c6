"""Measures of a ranking beside sums written out, and hashes beside what they must do on constructed data."""

import numpy as np
import pytest

from dvaepp.codes.hashing import itq, pca_sign, random_hyperplanes
from dvaepp.codes.retrieval import average_precision, by_pixels, interval, precision_at_k, quality
from dvaepp.errors import UsageError


def test_measures_equal_their_definitions() -> None:
    right = np.array([[1, 0, 1, 1, 0], [0, 0, 0, 0, 1], [0, 0, 0, 0, 0]], bool)
    assert precision_at_k(right, 3).tolist() == pytest.approx([2 / 3, 0, 0])
    assert average_precision(right).tolist() == pytest.approx([(1 + 2 / 3 + 3 / 4) / 3, 1 / 5, 0])


def test_the_interval_holds_the_mean_as_often_as_it_says() -> None:
    """300 sets of 200 queries, mean 0.3: at 95 % the count of hits is 285 ± 3.8; five deviations are allowed."""
    random = np.random.default_rng(0)
    found = [interval((random.random(200) < 0.3).astype(float), seed) for seed in range(300)]
    hits = sum(each.low <= 0.3 <= each.high for each in found)
    assert abs(hits - 285) < 19
    narrow = sum(abs(each.value - 0.3) < (each.high - each.value) / 2 for each in found)
    assert narrow < 285 - 19  # an interval of half the width would be noticed


def test_quality_of_a_perfect_and_a_random_ranking() -> None:
    random = np.random.default_rng(1)
    labels, queries = np.arange(500) % 5, np.arange(250) % 5
    pixels = np.eye(5)
    good = quality(by_pixels(pixels[labels], pixels[queries]), labels, queries, 50)
    assert good.precision.value == good.mean_average_precision.value == 1.0 and good.num_queries == 250
    chance = quality(
        lambda part: random.permuted(np.tile(np.arange(500), (len(range(*part.indices(250))), 1)), axis=1),
        labels,
        queries,
        50,
    )
    assert chance.precision.low < 0.2 < chance.precision.high


def test_by_pixels_orders_by_distance() -> None:
    random = np.random.default_rng(2)
    database, queries = random.random((40, 6)), random.random((3, 6))
    expected = np.argsort(((queries[:, None] - database[None]) ** 2).sum(2), 1)
    assert np.array_equal(by_pixels(database, queries)(slice(0, 3)), expected)


def test_random_hyperplanes_differ_with_the_angle() -> None:
    """P(bits differ) = angle / π; 20 000 bits, standard error 0.0033 at 1/3."""
    x = np.array([[1.0, 0.0], [0.5, np.sqrt(0.75)], [-1.5, -np.sqrt(0.75)]])  # mean zero; 60 degrees between the first
    first, second, _ = random_hyperplanes(x, 20_000)(x)
    assert abs((first != second).mean() - 1 / 3) < 0.017


def _clusters(random: np.random.Generator) -> np.ndarray:
    """Corners of a cube in 4 dimensions with a little noise, turned at random and put into 10 features."""
    corners = np.where(random.random((2000, 4)) < 0.5, 1.0, -1.0) + 0.1 * random.standard_normal((2000, 4))
    turn, _ = np.linalg.qr(random.standard_normal((10, 4)))
    return corners @ turn.T


def test_itq_finds_the_corners_that_principal_signs_miss() -> None:
    x = _clusters(np.random.default_rng(3))

    def loss(hash_) -> float:
        projected = (x - hash_.mean) @ hash_.directions
        return float(((projected - np.where(projected > 0, 1.0, -1.0)) ** 2).mean())

    for seed in range(5):  # neither step of a turn can raise the loss
        losses = [loss(itq(x, 4, iterations, seed)) for iterations in (1, 5, 50)]
        assert losses == sorted(losses, reverse=True)
    turned = min((itq(x, 4, seed=seed) for seed in range(5)), key=loss)  # some starts end in a worse rotation
    assert loss(turned) < 0.05 < loss(pca_sign(x, 4))
    assert np.allclose(turned.directions.T @ turned.directions, np.eye(4), atol=1e-8)


def test_pca_sign_takes_the_directions_of_largest_variance() -> None:
    random = np.random.default_rng(4)
    x = random.standard_normal((5000, 6)) * np.array([1, 9, 2, 0.5, 4, 0.1])
    directions = np.abs(pca_sign(x, 3).directions)
    assert directions.argmax(0).tolist() == [1, 4, 2] and directions.max(0).min() > 0.99
    with pytest.raises(UsageError, match="has no 7 principal components"):
        pca_sign(x, 7)
