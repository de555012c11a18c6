"""The random numbers of the chains in both forms; these tests need no compiler."""

import pytest
import torch

from dvaepp.kernels import gibbs as kernel

KEY, STEP, ELEMENT = 1, 3, 4_006_645  # its word rounds to u = 1 in float32


def test_plain_words_are_the_published_ones() -> None:
    """The answers for a key and a counter of zeros; the four words of a counter are 16 elements apart."""
    words = kernel.words(0, 64, torch.tensor(0), 0)[::16]
    assert [f"{word:08x}" for word in words.tolist()] == ["6627e8d5", "e169c58d", "bc57ac4c", "9b00dbd8"]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("form", ["kernel", "plain"])
def test_no_random_word_switches_a_certain_unit_off(form: str, dtype: torch.dtype) -> None:
    assert kernel.words(ELEMENT, 1, torch.tensor(KEY), STEP).item() == 0xFFFFFF82
    acc, zero = torch.full((1, 1), 200.0, dtype=dtype), torch.zeros(1, dtype=dtype)
    out = torch.empty_like(acc)
    if form == "plain":
        kernel.threshold(acc, zero, zero, None, out, torch.tensor(KEY), STEP, ELEMENT)
    elif kernel.available():
        kernel.threshold_(acc, zero, zero, None, out, KEY, STEP, ELEMENT)
    else:
        pytest.skip("no C compiler here, or DVAEPP_KERNEL=off")
    assert out.item() == 1
