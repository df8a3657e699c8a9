"""Every version of the compiled kernels against numpy."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

from embstore.kernels.compiled import dot_rows, gather_rows, limit_target

BEST = limit_target(2)


@pytest.fixture(params=[0, 1, 2], ids=["plain", "avx2", "avx512"])
def target(request: pytest.FixtureRequest) -> Iterator[int]:
    if request.param > BEST:
        pytest.skip(f"this processor runs version {BEST} of the kernels at most")
    yield limit_target(request.param)
    limit_target(2)


def test_rows_are_copied_in_the_order_asked_for_up_to_a_missing_segment() -> None:
    segments = [np.arange(n * 6, n * 6 + 6, dtype=np.int32).reshape(3, 2) for n in range(4)]
    bases = np.array([segment.ctypes.data for segment in segments], np.uint64)
    rows = np.array([11, 0, 5, 5, 3, 8, 1, 2, 10, 4, 9, 0])
    out = np.full((len(rows), 2), -1, np.int32)
    assert gather_rows(bases, 3, 8, rows, out.reshape(-1).view(np.int8)) == len(rows)
    assert (out == np.concatenate(segments)[rows]).all()
    bases[2] = 0
    out[:] = -1
    assert gather_rows(bases, 3, 8, rows, out.reshape(-1).view(np.int8)) == 5
    assert (out[:5] == np.concatenate(segments)[rows[:5]]).all()
    assert (out[5:] == -1).all()


@pytest.mark.parametrize("size", [1, 7, 16, 33, 64, 97])
def test_products_and_lengths(target: int, size: int) -> None:
    generator = np.random.default_rng(size)
    rows = generator.standard_normal((5, size)).astype(np.float16)
    rows[1] *= np.float16(2**-20)  # subnormal
    query = generator.standard_normal(size).astype(np.float32)
    products, squares = np.empty(5, np.float32), np.empty(5, np.float32)
    dot_rows(rows.view(np.uint16), query, products, squares)
    exact = rows.astype(np.float64)
    assert np.allclose(products, exact @ query, rtol=1e-5, atol=1e-6 * np.abs(exact).max(1))
    assert np.allclose(squares, np.square(exact).sum(1), rtol=1e-5, atol=0)
