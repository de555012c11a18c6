"""Search among codes beside brute force on unpacked bits, in both forms, with threads, files and hostile input."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dvaepp.codes import HammingIndex
from dvaepp.codes import hamming as codes_in_use
from dvaepp.codes.index_file import IndexFile, read, write
from dvaepp.codes.packing import pack, unpack
from dvaepp.errors import UsageError
from dvaepp.kernels import hamming


def _random(n: int, bits: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).random((n, bits)) < 0.5


def _brute(codes: np.ndarray, queries: np.ndarray, k: int) -> tuple[np.ndarray, np.ndarray]:
    distances = (queries[:, None, :] != codes[None]).sum(2)
    order = np.lexsort((np.broadcast_to(np.arange(len(codes)), distances.shape), distances), axis=1)[:, :k]
    return np.take_along_axis(distances, order, 1), order


@settings(max_examples=60, deadline=None)
@given(
    n=st.integers(1, 3000),
    bits=st.integers(1, 300),
    k=st.integers(1, 50),
    threads=st.integers(1, 4),
    seed=st.integers(0),
)
def test_search_equals_brute_force(n: int, bits: int, k: int, threads: int, seed: int) -> None:
    """With as many shares as threads, which so few codes would not be worth."""
    codes, queries, k = _random(n, bits, seed), _random(3, bits, seed + 1), min(k, n)
    index = HammingIndex(bits)
    index.add(codes[: n // 2])
    index.add(codes[n // 2 :])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(codes_in_use, "SHARE", 1)
        found = index.search(queries, k, threads)
    expected = _brute(codes, queries, k)
    assert np.array_equal(found.distances, expected[0]) and np.array_equal(found.indices, expected[1])


@pytest.mark.parametrize(
    ("n", "bits", "k"), [(70_000, 64, 10), (70_000, 256, 10), (40_000, 16, 5000), (3000, 130, 3000)]
)
def test_the_compiled_form_equals_the_plain_one(n: int, bits: int, k: int) -> None:
    codes, queries = pack(_random(n, bits)), pack(_random(4, bits, 1))
    for one, other in zip(hamming.nearest(codes, queries, k), hamming.plain(codes, queries, k), strict=True):
        assert np.array_equal(one, other)


def test_a_search_that_breaks_ties_otherwise_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """All codes are equal, so that the nearest are the first rows whatever is added."""
    monkeypatch.setattr(codes_in_use, "SHARE", 1)
    index = HammingIndex(9)
    index.add(np.zeros((5000, 9), bool))
    assert index.search(np.ones((1, 9), bool), 4, threads=3).indices.tolist() == [[0, 1, 2, 3]]


def test_packing_is_undone() -> None:
    for bits in (1, 63, 64, 65, 200):
        codes = _random(50, bits)
        assert np.array_equal(unpack(pack(codes), bits), codes) and pack(codes).shape == (50, -(-bits // 64))


def test_rerank_orders_by_the_expected_distance() -> None:
    """The oracle draws codes of the query: 40 000 draws, standard error below 0.01 for 16 bits."""
    codes, random = _random(30, 16), np.random.default_rng(3)
    index = HammingIndex(16)
    index.add(codes)
    mu = random.random((1, 16))
    candidates = np.arange(30)[None]
    found = index.rerank(mu, candidates, 5)
    draws = random.random((40_000, 16)) < mu
    means = np.array([(draws != code).sum(1).mean() for code in codes])
    assert np.abs(found.distances[0] - means[found.indices[0]]).max() < 0.06  # six standard errors
    assert np.all(np.diff(found.distances[0]) >= 0) and len(found.indices[0]) == 5
    assert np.abs(index.rerank(1 - mu, candidates, 5).distances - found.distances).max() > 0.06  # μ turned round


def test_what_cannot_be_searched_is_refused() -> None:
    index = HammingIndex(8)
    with pytest.raises(UsageError, match="k must be from 1 to the 0 codes"):
        index.search(np.zeros((1, 8), bool), 1)
    index.add(np.zeros((3, 8), bool))
    with pytest.raises(UsageError, match=r"bits must have shape \(codes, 8\)"):
        index.search(np.zeros((1, 9), bool), 1)
    with pytest.raises(UsageError, match=r"bits must be 0 or 1, got 0\.3"):
        index.add(np.full((1, 8), 0.3))
    with pytest.raises(UsageError, match="threads must be at least 1"):
        index.search(np.zeros((1, 8), bool), 1, threads=0)
    with pytest.raises(UsageError, match="num_bits must be from 1"):
        HammingIndex(0)
    with pytest.raises(UsageError, match=r"mu must have shape \(1, 8\), got \(1, 7\)"):
        index.rerank(np.full((1, 7), 0.5), [[0]])
    with pytest.raises(UsageError, match="mu must be probabilities"):
        index.rerank(np.full((1, 8), 1.5), np.zeros((1, 1), int))
    for wrong in ([[0, 3]], [[-1]], [0], [[0.5]]):
        with pytest.raises(UsageError, match="indices must be rows of the index, .* from 0 to 2"):
            index.rerank(np.full((1, 8), 0.5), wrong)
    for k in (0, -1, 3):
        with pytest.raises(UsageError, match=f"k must be from 1 to the 2 candidates, got {k}"):
            index.rerank(np.full((1, 8), 0.5), [[0, 1]], k)
    with pytest.raises(UsageError, match=r"words must be uint64 of shape \(codes, 1\)"):
        index.add_words(np.zeros((2, 3), np.uint64))
    assert index.rerank(np.zeros((0, 8)), np.zeros((0, 2), int)).indices.shape == (0, 2)
    assert index.search(np.zeros((0, 8), bool), 2).indices.shape == (0, 2)


def test_an_index_comes_back_from_disk(tmp_path: Path) -> None:
    index = HammingIndex(100)
    index.add(_random(500, 100))
    labels = np.arange(500) % 7
    write(tmp_path / "a.npz", IndexFile(index, labels, "digest", {"split": "train"}))
    with np.load(tmp_path / "a.npz", allow_pickle=False) as arrays:
        assert arrays["codes"].shape == (500, 2)
    query = _random(2, 100, 5)
    for memory_map in (False, True):
        again = read(tmp_path / "a.npz", memory_map=memory_map)
        assert again.model == "digest" and again.source == {"split": "train"}
        assert again.labels is not None and np.array_equal(again.labels, labels)
        assert isinstance(again.index.words, np.memmap) == memory_map
        assert again.index.words.ctypes.data % 64 == 0 or not memory_map
        assert np.array_equal(again.index.search(query, 9).indices, index.search(query, 9).indices)
    index.save(tmp_path / "b.npz")
    assert len(HammingIndex.load(tmp_path / "b.npz")) == 500


def test_every_flipped_bit_of_an_index_is_refused_or_harmless(tmp_path: Path) -> None:
    index = HammingIndex(20)
    index.add(_random(10, 20))
    path = tmp_path / "a.npz"
    index.save(path)
    whole, refused = path.read_bytes(), 0
    for place in range(0, len(whole), 2):
        path.write_bytes(whole[:place] + bytes([whole[place] ^ (1 << place % 8)]) + whole[place + 1 :])
        for memory_map in (False, True):
            try:
                again = HammingIndex.load(path, memory_map=memory_map)
            except OSError as error:
                assert "\n" not in str(error) and "cannot be read as an index" in str(error)
                refused += 1
            else:  # a date, a filler or another field that nothing depends on
                assert again.num_bits == 20 and np.array_equal(again.words, index.words)
    assert refused > len(whole) // 2
