"""Matrices of MATLAB files, against scipy."""

import io
from typing import Any

import numpy as np
import pytest
from scipy.io import loadmat, savemat

from dvaepp.data.matlab import matrices

RANDOM = np.random.RandomState(0)
VARIABLES: dict[str, Any] = {
    **{f"a_{kind}": RANDOM.randint(0, 100, (3, 5)).astype(kind) for kind in ("u1", "i1", "u2", "i2", "u4", "i4", "u8")},
    **{f"b_{kind}": RANDOM.standard_normal((4, 2, 3)).astype(kind) for kind in ("f4", "f8")},
    "flags": RANDOM.randint(0, 2, (6, 1)).astype(bool),
    "whole": np.arange(300.0).reshape(1, 300),
    "one": np.array([[7]], np.uint8),
    "a_name_of_many_letters": np.arange(4),
}
OTHERS: dict[str, Any] = {
    "text": "abc",
    "cells": np.array([[1], "two"], dtype=object),
    "struct": {"x": 1, "y": "z"},
    "complex": np.array([[1j]]),
}


@pytest.mark.parametrize("packed", [False, True])
def test_numbers_of_every_kind_equal_scipy(packed: bool) -> None:
    buffer = io.BytesIO()
    savemat(buffer, VARIABLES | OTHERS, do_compression=packed)
    found, expected = matrices(buffer.getvalue(), list(VARIABLES)), loadmat(io.BytesIO(buffer.getvalue()))
    assert set(found) == set(VARIABLES)
    for name, matrix in found.items():
        assert matrix.dtype == expected[name].dtype and np.array_equal(matrix, expected[name])


@pytest.mark.parametrize("name", [*OTHERS, "absent"])
def test_what_is_no_matrix_of_numbers_is_not_read(name: str) -> None:
    buffer = io.BytesIO()
    savemat(buffer, OTHERS)
    with pytest.raises(ValueError, match=f"lacks a matrix of numbers called {name}"):
        matrices(buffer.getvalue(), [name])
