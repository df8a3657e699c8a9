"""float16 bits as float32 in compiled loops, against numpy, every one of the 65,536."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numba import njit

from embstore.analysis.kernels import by_arithmetic, float_of_half


def test_every_half_by_arithmetic() -> None:
    @njit
    def convert(bits: Any, out: Any) -> None:
        for at in range(len(bits)):
            out[at] = by_arithmetic(bits[at])

    _compare(convert)


def test_every_half_as_this_processor_does() -> None:
    @njit
    def convert(bits: Any, out: Any) -> None:
        for at in range(len(bits)):
            out[at] = float_of_half(bits[at])

    _compare(convert)


def _compare(convert: Any) -> None:
    bits = np.arange(65536, dtype=np.uint16).view(np.int16)
    out = np.empty(len(bits), np.float32)
    convert(bits, out)
    expected = bits.view(np.float16).astype(np.float32)
    np.testing.assert_array_equal(out, expected)
    assert (np.signbit(out) == np.signbit(expected))[~np.isnan(expected)].all()


@pytest.mark.parametrize("metric", ["cosine", "ip", "l2"])
def test_infinite_and_nan_halves_are_refused_with_their_row(metric: str) -> None:
    from embstore.analysis.neighbors.exact import exact_search
    from embstore.analysis.neighbors.space import ArrayVectors, Space
    from embstore.errors import NonFiniteError

    for value in (np.inf, -np.inf, np.nan):
        vectors = np.ones((40, 24), np.float16)
        vectors[29, 23] = value
        with pytest.raises(NonFiniteError, match="row 29"):
            exact_search(ArrayVectors(vectors), np.ones(24), k=3, space=Space(metric))
