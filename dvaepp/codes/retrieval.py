"""How good a ranking is, judged by labels: a hit is right where its label is the query's.

    precision@k            the share of right ones among the first k
    average precision      the mean, over all right items, of the precision at the rank of each

Both are averaged over queries, and an interval comes from resampling the queries: it says how far the average would
move with other queries of the same kind, not with another training of the model.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Integers = npt.NDArray[np.int64]
Ranking = Callable[[slice], Integers]
"""Database rows in order, nearest first, (queries of the slice, all rows)."""

RESAMPLES = 2000
DRAWS_AT_ONCE = 2**20
RANKED_AT_ONCE = 5 * 10**6  # items of rankings: a few numbers of 8 bytes are kept for each


class Interval(NamedTuple):
    """A mean over queries with its 95 % bootstrap interval."""

    value: float
    low: float
    high: float


class Quality(NamedTuple):
    precision: Interval
    mean_average_precision: Interval
    k: int
    num_queries: int


def precision_at_k(right: npt.NDArray[np.bool_], k: int) -> Floats:
    """The precision of every query, from whether each of its ranked items is right, (queries, ranks)."""
    return right[:, :k].mean(1, dtype=np.float64)


def average_precision(right: npt.NDArray[np.bool_]) -> Floats:
    """The average precision of every query, from a ranking of all items, (queries, items); zero if none is right."""
    ranks = np.arange(1, right.shape[1] + 1, dtype=np.float64)
    precisions = np.cumsum(right, 1, dtype=np.float64) / ranks
    return (precisions * right).sum(1) / np.maximum(right.sum(1), 1)


def interval(values: Floats, seed: int = 0) -> Interval:
    """Mean and percentile bootstrap interval, queries drawn with replacement."""
    random = np.random.default_rng(seed)
    at_once = max(1, DRAWS_AT_ONCE // len(values))
    sizes = [min(at_once, RESAMPLES - done) for done in range(0, RESAMPLES, at_once)]
    means = [values[random.integers(0, len(values), (size, len(values)))].mean(1) for size in sizes]
    low, high = np.quantile(np.concatenate(means), [0.025, 0.975])
    return Interval(float(values.mean()), float(low), float(high))


def quality(ranking: Ranking, labels: npt.NDArray[Any], query_labels: npt.NDArray[Any], k: int) -> Quality:
    """precision@k and mean average precision of a ranking of all labelled items for all labelled queries."""
    precisions, averages = [], []
    at_once = max(1, RANKED_AT_ONCE // max(1, len(labels)))
    for start in range(0, len(query_labels), at_once):
        part = slice(start, min(start + at_once, len(query_labels)))
        right = labels[ranking(part)] == query_labels[part, None]
        precisions.append(precision_at_k(right, k))
        averages.append(average_precision(right))
    means = interval(np.concatenate(precisions)), interval(np.concatenate(averages))
    return Quality(*means, k, len(query_labels))


def by_pixels(database: npt.NDArray[Any], queries: npt.NDArray[Any]) -> Ranking:
    """The ranking by Euclidean distance of raw pixels, (items, pixels) and (queries, pixels)."""
    squares = (database**2).sum(1)

    def ranking(part: slice) -> Integers:
        return np.argsort(squares - 2 * (queries[part] @ database.T), 1, kind="stable")

    return ranking
