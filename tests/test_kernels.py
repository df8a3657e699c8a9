"""Every version of the kernels, compiled or of numpy, against plain numpy."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import polars.testing
import pytest

import embstore as es
from embstore.kernels import (
    Candidates,
    add_cosines,
    all_finite,
    gather_rows,
    pack_queries,
    padded_queries,
    plain,
    rank_rows,
    score_pairs,
    take_rows,
)
from embstore.store.storage.files import MappedFile
from embstore.store.vectors import dequantize
from tests.store_making import make_store

try:
    from embstore.kernels import compiled

    BEST = compiled.limit_target(2)
except ImportError:
    BEST = -1

NAMES = {name for name in vars(compiled) if name in vars(plain) and name[0] != "_"} if BEST >= 0 else set()
FLOAT, HALF, BFLOAT, DOUBLE, CODES = range(5)
COSINE, PRODUCT, DISTANCE = 0, 1, 2


@pytest.fixture(params=[-1, 0, 1, 2], ids=["numpy", "plain", "avx2", "avx512"])
def target(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[int]:
    """Every version of the kernels that depend on the processor."""
    if request.param > BEST:
        pytest.skip(f"this processor runs version {BEST} of the kernels at most")
    for name in NAMES:
        monkeypatch.setitem(globals(), name, getattr(plain if request.param < 0 else compiled, name))
    if BEST >= 0:
        compiled.limit_target(max(0, request.param))
    yield request.param
    if BEST >= 0:
        compiled.limit_target(2)


@pytest.mark.parametrize("segment_rows", [3, 4])
@pytest.mark.parametrize("n_rows", [1, 7, 8, 9, 40])
def test_rows_are_copied_in_the_order_asked_for_up_to_a_missing_segment(
    target: int, segment_rows: int, n_rows: int
) -> None:
    values = np.arange(4 * segment_rows * 2, dtype=np.int32).reshape(-1, 2)
    segments = [part.copy() for part in np.split(values, 4)]
    bases = np.array([segment.ctypes.data for segment in segments], np.uint64)
    rows = np.random.default_rng(n_rows).integers(0, len(values), n_rows)
    out = np.full((n_rows, 2), -1, np.int32)
    assert gather_rows(bases, segment_rows, 8, rows, out, 0) == n_rows
    assert (out == values[rows]).all()
    bases[rows[-1] // segment_rows] = 0
    first = int((rows // segment_rows == rows[-1] // segment_rows).argmax())
    out[:] = -1
    assert gather_rows(bases, segment_rows, 8, rows, out, 0) == first
    assert (out[:first] == values[rows[:first]]).all()
    assert (out[first:] == -1).all()


def test_a_buffer_that_does_not_fit_the_rows_is_refused(target: int) -> None:
    bases, rows = np.zeros(1, np.uint64), np.zeros(2, np.int64)
    for out in (np.empty((3, 2), np.int32), np.empty((2, 4), np.int32)[:, ::2], b"0" * 16):
        with pytest.raises((ValueError, BufferError)):
            gather_rows(bases, 3, 8, rows, out, 0)  # type: ignore[arg-type]


def test_a_copy_whose_first_rows_are_slow_ends_early(target: int) -> None:
    if target < 0:
        pytest.skip("numpy does not time its copies")
    values = np.arange(40, dtype=np.int64)
    bases, rows, out = np.array([values.ctypes.data], np.uint64), np.arange(39, -1, -1), np.full(40, -1)
    assert gather_rows(bases, 40, 8, rows, out, -1) == 16  # no time is below a negative one
    assert out.tolist() == [*range(39, 23, -1), *[-1] * 24]
    assert gather_rows(bases, 40, 8, rows, out, 2**40) == 40
    assert (out == rows).all()
    assert gather_rows(bases, 40, 8, rows[:16], out[:16], -1) == 16


def test_float16_becomes_float32_as_it_is_copied(target: int) -> None:
    """Every value, in rows that vectors of no processor fill."""
    values = np.arange(2**16, dtype=np.uint16).view(np.float16)[: 37 * 1771].reshape(-1, 37)
    rows, out = np.arange(len(values))[::-1].copy(), np.empty(values.shape, np.float32)
    assert gather_rows(np.array([values.ctypes.data], np.uint64), 1771, 74, rows, out, 0) == 1771
    np.testing.assert_array_equal(out, values[::-1].astype(np.float32))


def test_rows_are_taken_unless_anything_is_unusual(target: int, tmp_path: Path) -> None:
    values, out = np.arange(24, dtype=np.int32).reshape(12, 2), np.zeros((3, 2), np.int32)
    (tmp_path / "file").write_bytes(values.tobytes())
    file, committed = MappedFile(tmp_path / "file", is_held=True), np.array([1, 1, 0], np.uint8)
    bases = np.array([file.address, file.address + 32, file.address + 64], np.uint64)

    def taken(*rows: int, held: Any = (0, 1, 2), n_stored: int = 12, file: MappedFile = file) -> int:
        held, numbers = dict.fromkeys(held, file), np.array(rows, np.int64)
        return take_rows(held, bases, 4, 8, 0, numbers, n_stored, 4, committed, out[: len(rows)], True)

    assert taken(7, 0, 4) == (3 if target >= 0 else -1)
    assert (out == values[[7, 0, 4]] * (target >= 0)).all()
    assert [taken(), taken(8), taken(-1), taken(12), taken(4, n_stored=4), taken(0, held=[1])] == [-1] * 6
    assert taken(0, file=MappedFile(tmp_path / "file")) == -1
    os.truncate(tmp_path / "file", 95)
    assert taken(0) == -1


def test_values_that_are_not_finite_are_found() -> None:
    """Every float16 alone, and float32 of every exponent, also after values that are finite."""
    halves = np.arange(2**16, dtype=np.uint16)
    found = [all_finite(halves[number : number + 1].view(np.int8), True) for number in range(2**16)]
    np.testing.assert_array_equal(found, np.isfinite(halves.view(np.float16)))
    floats = (np.arange(2**9, dtype=np.uint32) << 23) | np.uint32(12345)
    values = np.zeros((2**9, 37), np.float32)
    values[:, 36] = floats.view(np.float32)
    found = [all_finite(row.view(np.int8), False) for row in values]
    np.testing.assert_array_equal(found, np.isfinite(values).all(1))
    assert all_finite(np.empty(0, np.int8), True)


class Search:
    """A search by the kernel; `capacity` candidates of each query, every row by default."""

    def __init__(
        self,
        queries: np.ndarray,
        metric: int,
        capacity: int,
        *,
        n_best: int | None = None,
        mean: np.ndarray | None = None,
        groups: tuple[np.ndarray, np.ndarray] | None = None,
    ) -> None:
        self.scores = np.full((len(queries), capacity), np.nan, np.float32)
        self.rows = np.full(self.scores.shape, -1)
        self.filled = np.zeros(len(queries), np.int64)
        self.least = np.full(padded_queries(len(queries)), np.inf, np.float32)
        self.least[: len(queries)] = -np.inf
        length = 0.0 if mean is None else float(np.linalg.norm(mean))
        of_groups = ([], np.empty((0, len(queries)), np.int64)) if groups is None else ([groups[0]], groups[1])
        self.kernel = Candidates(
            queries, pack_queries(queries), metric, mean, length, *of_groups,
            n_best or capacity - 1, self.scores, self.rows, self.filled, self.least,
        )  # fmt: skip

    def add(
        self, vectors: np.ndarray, kind: int, first: int = 0, rows: np.ndarray | None = None, **more: Any
    ) -> tuple[np.ndarray, float]:
        """Returns the state of each row, and the largest squared length."""
        state = np.full(len(vectors) if rows is None else len(rows), 9, np.uint8)
        n_other, longest = self.kernel.add(vectors.view(np.int8), kind, state, first, rows, **more)
        assert n_other == (state > 0).sum()
        return state, longest

    def table(self, n_rows: int) -> np.ndarray:
        """The score of each query with each row, NaN where it is no candidate."""
        out = np.full((len(self.scores), n_rows), np.nan)
        for query, filled in enumerate(self.filled.tolist()):
            assert len(set(self.rows[query, :filled].tolist())) == filled
            out[query, self.rows[query, :filled]] = self.scores[query, :filled]
        return out


def as_stored(values: np.ndarray, kind: int) -> tuple[np.ndarray, np.ndarray]:
    """Values as they are stored, and what those are in float64."""
    if kind == BFLOAT:
        bits = (values.astype(np.float32).view(np.uint32) >> 16).astype(np.uint16)
        return bits, (bits.astype(np.uint32) << 16).view(np.float32).astype(np.float64)
    stored = values.astype({FLOAT: np.float32, HALF: np.float16, DOUBLE: np.float64}[kind])
    return stored, stored.astype(np.float64)


def order_scores(vectors: np.ndarray, queries: np.ndarray, metric: int) -> np.ndarray:
    """What the kernel orders rows by, [q, n] in float64."""
    products = queries.astype(np.float64) @ vectors.T
    squares = np.square(vectors).sum(1)
    if metric == COSINE:
        return np.asarray(products / np.sqrt(np.where(squares > 0, squares, 1)))
    return np.asarray(products - squares / 2 if metric == DISTANCE else products)


@pytest.mark.parametrize("kind", [FLOAT, HALF, BFLOAT], ids=["float", "half", "bfloat"])
@pytest.mark.parametrize("metric", [COSINE, PRODUCT, DISTANCE], ids=["cosine", "product", "distance"])
@pytest.mark.parametrize("n_queries", [1, 2, 3, 4, 5, 16, 17, 33, 70])
@pytest.mark.quick(3)
def test_scores_are_those_of_numpy(target: int, n_queries: int, metric: int, kind: int) -> None:
    generator = np.random.default_rng(n_queries)
    for size in (1, 7, 16, 33, 97, 300):
        stored, exact = as_stored(generator.standard_normal((31, size)) * generator.uniform(0.1, 9, (31, 1)), kind)
        queries = generator.standard_normal((n_queries, size)).astype(np.float32)
        search = Search(queries, metric, 40)
        state, longest = search.add(stored, kind)
        assert not state.any()
        assert longest == pytest.approx(np.square(exact).sum(1).max(), rel=1e-5)
        expected = order_scores(exact, queries, metric)
        assert np.allclose(search.table(31), expected, rtol=1e-5, atol=1e-5 * np.abs(expected).max())


@pytest.mark.parametrize("metric", [COSINE, PRODUCT, DISTANCE], ids=["cosine", "product", "distance"])
@pytest.mark.parametrize("n_queries", [1, 2, 3, 4, 20])
def test_codes_are_compared_as_the_values_they_decode_to(target: int, n_queries: int, metric: int) -> None:
    """The products of unit vectors are single values: float32 rounds them after scaling and after adding the center."""
    generator = np.random.default_rng(5)
    for size in (7, 40, 97):
        codes = generator.integers(-127, 128, (50, size)).astype(np.int8)
        scales = generator.uniform(0.01, 3, 50).astype(np.float32)
        center = (generator.standard_normal(size) * 40).astype(np.float32)
        codes[:9] = np.round(-center / scales[:9, None]).clip(-127, 127)  # small differences of large numbers
        values = dequantize(codes, scales, center)
        queries = np.eye(size, dtype=np.float32)[generator.permutation(size)[:n_queries]]
        search = Search(queries, metric, 60)
        state, _ = search.add(codes, CODES, scales=scales, center=center)
        assert not state.any()
        table, expected = search.table(50), order_scores(values.astype(np.float64), queries, metric)
        if metric == PRODUCT:
            assert (table == expected).all()
        assert np.allclose(table, expected, rtol=1e-5, atol=1e-5 * np.abs(expected).max())


@pytest.mark.parametrize("kind", [FLOAT, HALF, BFLOAT, CODES], ids=["float", "half", "bfloat", "codes"])
@pytest.mark.parametrize("n_queries", [1, 20])
def test_rows_among_others_are_read_where_they_are(target: int, n_queries: int, kind: int) -> None:
    generator = np.random.default_rng(6)
    size = 33
    more = {}
    if kind == CODES:
        stored = generator.integers(-127, 128, (200, size)).astype(np.int8)
        scales, center = generator.uniform(0.1, 1, 200).astype(np.float32), np.ones(size, np.float32)
        more = {"scales": scales, "center": center}
        exact = dequantize(stored, scales, center).astype(np.float64)
    else:
        stored, exact = as_stored(generator.standard_normal((200, size)), kind)
    queries = generator.standard_normal((n_queries, size)).astype(np.float32)
    for chosen in ([0, 199], [5], np.flatnonzero(generator.random(200) < 0.3), np.arange(200)):
        spread, packed = Search(queries, DISTANCE, 300), Search(queries, DISTANCE, 300)
        rows = 1000 + np.asarray(chosen)
        spread.add(stored, kind, 1000, rows, spread=True, **more)
        packed.add(stored[chosen], kind, 7, rows, **{**more, **({"scales": more["scales"][chosen]} if more else {})})
        expected = np.full((n_queries, 1200), np.nan)
        expected[:, rows] = order_scores(exact[chosen], queries, DISTANCE)
        for search in (spread, packed):
            assert np.allclose(search.table(1200), expected, atol=1e-5 * np.nanmax(np.abs(expected)), equal_nan=True)
    with pytest.raises(ValueError, match="not among the vectors"):
        spread.add(stored, kind, 1000, np.array([1000, 1200]), spread=True, **more)
    with pytest.raises(ValueError, match="not those of the states"):
        spread.add(stored, kind, 1000, spread=True, **more)


def test_more_queries_than_fit_the_cache(target: int) -> None:
    generator = np.random.default_rng(4)
    stored, exact = as_stored(generator.standard_normal((430, 600)), FLOAT)
    queries = generator.standard_normal((450, 600)).astype(np.float32)
    search = Search(queries, PRODUCT, 431)
    search.add(stored, FLOAT)
    assert np.allclose(search.table(430), order_scores(exact, queries, PRODUCT), atol=1e-3)


@pytest.mark.parametrize("n_queries", [3, 20])
def test_every_finite_half_is_read_exactly(target: int, n_queries: int) -> None:
    bits = np.arange(65536, dtype=np.uint16)
    halves = bits[(bits & 0x7C00) != 0x7C00].reshape(-1, 31)[:, :20].copy()
    search = Search(np.eye(20, dtype=np.float32)[:n_queries], PRODUCT, len(halves) + 1)
    search.add(halves, HALF)
    assert (search.table(len(halves)) == halves.view(np.float16)[:, :n_queries].T).all()
    for column in range(20):
        scores = np.empty(len(halves))
        one = np.ascontiguousarray(halves[:, column : column + 1])
        score_pairs(one.view(np.int8), HALF, PRODUCT, np.ones((1, 1)), scores.astype(np.int64) * 0,
                    np.arange(len(halves)), scores)  # fmt: skip
        assert (scores == halves[:, column].view(np.float16)).all()


@pytest.mark.parametrize("n_queries", [2, 40])
@pytest.mark.parametrize("kind", [FLOAT, HALF], ids=["float", "half"])
def test_the_best_remain_when_the_candidates_are_full(target: int, kind: int, n_queries: int) -> None:
    generator = np.random.default_rng(1)
    stored, exact = as_stored(generator.standard_normal((900, 24)), kind)
    queries = generator.standard_normal((n_queries, 24)).astype(np.float32)
    of_rows, of_queries = generator.integers(0, 5, 900), generator.integers(-1, 5, (1, n_queries))
    search = Search(queries, DISTANCE, 50, n_best=20, groups=(of_rows, of_queries))
    search.add(stored[:700], kind)
    search.add(stored[700:], kind, 700)
    expected = order_scores(exact, queries, DISTANCE)
    expected[(of_rows[None] == of_queries.T) & (of_queries.T >= 0)] = -np.inf
    found = search.table(900)
    for query, scores in enumerate(expected):
        best = np.argsort(-scores)[:20]
        assert np.isfinite(found[query, best]).all()
        assert search.least[query] <= scores[best[-1]] + 1e-4
        assert not np.isfinite(found[query, scores == -np.inf]).any()
        assert 20 <= search.filled[query] < 50


@pytest.mark.parametrize("ascending", [False, True])
@pytest.mark.parametrize("count", [1, 7, 9, 100, 1000])
def test_rows_are_ranked_by_score_and_then_by_row(count: int, ascending: bool) -> None:
    generator = np.random.default_rng(count)
    scores = generator.integers(-40, 40, (30, count)) / 8
    scores[::3] = generator.standard_normal((10, count))
    scores[1], scores[2, ::2] = 0.5, np.nan
    rows = np.array([generator.permutation(count) for _ in scores])
    rows[4], rows[5, count // 2 :] = -1, -1
    for k in (1, 5, 60, 2000):
        found, best = rank_rows(scores, rows, k, ascending)
        for line in range(30):
            valid = (rows[line] >= 0) & ~np.isnan(scores[line])
            key, own = scores[line][valid], rows[line][valid]
            order = np.lexsort((own, key if ascending else -key))[:k]
            assert found[line].tolist() == [*own[order], *[-1] * (k - len(order))]
            assert np.array_equal(best[line, : len(order)], key[order])
            assert np.isnan(best[line, len(order) :]).all()


@pytest.mark.parametrize("n_queries", [2, 40])
@pytest.mark.parametrize("repeats", [1, 40, 3000])
def test_many_candidates_and_ties_leave_out_none_of_the_best(target: int, repeats: int, n_queries: int) -> None:
    generator = np.random.default_rng(3)
    stored = np.repeat(generator.standard_normal((3000 // repeats, 9)), repeats, 0).astype(np.float32)
    stored = stored[generator.permutation(3000)]
    queries = generator.standard_normal((n_queries, 9)).astype(np.float32)
    search = Search(queries, PRODUCT, 470, n_best=300)
    search.add(stored, FLOAT)
    found = search.table(3000)
    for query, scores in enumerate(queries.astype(float) @ stored.T.astype(float)):
        assert 300 <= search.filled[query] < 470
        assert search.least[query] <= np.sort(scores)[-300] + 1e-5
        assert np.isfinite(found[query, scores > search.least[query] + 1e-5]).all()
        assert np.nanmin(found[query]) >= search.least[query]


@pytest.mark.parametrize("n_queries", [1, 3, 30])
def test_the_mean_is_subtracted(target: int, n_queries: int) -> None:
    generator = np.random.default_rng(2)
    size = 37
    stored, exact = as_stored(generator.standard_normal((50, size)) + 3, HALF)
    mean = exact.mean(0).astype(np.float32)
    queries = generator.standard_normal((n_queries, size)).astype(np.float32)
    moved = exact - mean
    for metric in (COSINE, PRODUCT, DISTANCE):
        search = Search(queries, metric, 60, mean=mean)
        assert not search.add(stored, HALF)[0].any()
        expected = order_scores(moved, queries, metric)
        assert np.allclose(search.table(50), expected, atol=2e-5 * np.abs(expected).max())


@pytest.mark.parametrize("n_queries", [1, 30])
def test_rows_that_floats_cannot_compare(target: int, n_queries: int) -> None:
    size = 20
    queries = np.random.default_rng(3).standard_normal((n_queries, size)).astype(np.float32)
    vectors = np.ones((9, size), np.float32)
    vectors[2, 7], vectors[4, 19], vectors[5] = np.inf, np.nan, 1e30
    vectors[6] = 1e-42
    vectors[7] = 0
    search = Search(queries, COSINE, 20)
    assert search.add(vectors, FLOAT)[0].tolist() == [0, 0, 2, 0, 2, 0, 0, 0, 0]
    table = search.table(9)
    assert np.isnan(table[:, [2, 4]]).all()
    assert np.allclose(table[:, [0, 1, 3, 5, 6, 8]], queries.sum(1)[:, None] / np.sqrt(size), atol=1e-5)
    assert (table[:, 7] == 0).all()
    for metric in (PRODUCT, DISTANCE):
        assert Search(queries, metric, 20).add(vectors, FLOAT)[0].tolist() == [0, 0, 2, 0, 2, 2, 0, 0, 0]
    close = Search(queries, COSINE, 20, mean=np.full(size, 1, np.float32)).add(vectors + np.float32(1e-6), FLOAT)[0]
    assert close.tolist() == [1, 1, 2, 1, 2, 1, 0, 0, 1]


@pytest.mark.parametrize("kind", [FLOAT, HALF, BFLOAT, DOUBLE], ids=["float", "half", "bfloat", "double"])
@pytest.mark.parametrize("size", [1, 8, 19, 70])
def test_pairs_are_scored_in_float64(target: int, size: int, kind: int) -> None:
    generator = np.random.default_rng(size)
    stored, exact = as_stored(generator.standard_normal((9, size)), kind)
    stored[3], exact[3] = 0, 0
    queries = generator.standard_normal((4, size))
    owners, numbers = generator.integers(4, size=60), generator.integers(9, size=60)
    pairs, scores = (exact[numbers], queries[owners]), np.empty(60)
    product, length = (pairs[0] * pairs[1]).sum(1), np.linalg.norm(pairs[0], axis=1)
    distance = np.linalg.norm(pairs[0] - pairs[1], axis=1)
    cosine = np.where(length > 0, product / np.where(length > 0, length, 1), 0)
    for metric, expected in ((COSINE, cosine), (PRODUCT, product), (DISTANCE, distance)):
        score_pairs(stored.view(np.int8), kind, metric, queries, owners, numbers, scores)
        assert np.allclose(scores, expected, rtol=1e-13, atol=1e-14)


NONE = np.empty(0, np.int64)


class UnitSums:
    """What `add_cosines` adds to; `slots`: the row of each word's total, -1 for none."""

    def __init__(self, size: int, dtype: Any = np.float32, *, slots: Any = (), sizes: Any = (), gap: int = 0) -> None:
        self.word_counts = np.array([[slot, 0, 0] for slot in slots], np.int64).reshape(-1, 3)
        self.word_sums = np.zeros((len(slots), size), dtype)
        self.word_totals = np.zeros((max(slots, default=-1) + 1, size))
        self.sizes, self.values = np.array(sizes, np.int64), np.full(len(sizes), np.nan)
        self.runs = np.array([[-1, 0], [-1, 0]])
        self.run_sums = np.zeros((2, 2, size), dtype)
        self.buffers = np.zeros(gap + 2 * size, dtype)[gap:].reshape(2, size)
        self.total = np.zeros(size)

    def add(self, vectors: np.ndarray, words: np.ndarray = NONE, sentences: np.ndarray = NONE) -> int:
        half = vectors.dtype == np.float16
        return add_cosines(self, vectors.view(np.int8), half, words, sentences, self.sizes)


def units_of(vectors: np.ndarray) -> np.ndarray:
    exact = vectors.astype(np.float64)
    return exact / np.maximum(np.linalg.norm(exact, axis=1, keepdims=True), 1e-300)


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_sums_of_unit_vectors(target: int, dtype: Any) -> None:
    generator = np.random.default_rng(5)
    arithmetic = np.float64 if dtype == np.float64 else np.float32
    for size in (5, 16, 41, 130):
        vectors = generator.standard_normal((12, size)).astype(dtype)
        vectors[5] = 0
        exact, units = vectors.astype(np.float64), units_of(vectors)
        words, sentences = np.arange(12) % 4 - 1, np.array([0, 0, 0, -1, 1, 1, 2, 2, 2, 2, 3, 3])
        sums = UnitSums(size, arithmetic, slots=[0, -1, -1], sizes=[4, 2, 4, 2])
        assert sums.add(vectors[:8], words[:8], sentences[:8]) == 7
        assert sums.add(vectors[8:], words[8:], sentences[8:]) == 4
        assert sums.word_counts[:, 1:].tolist() == [[3, 2], [0, 3], [0, 3]]
        bound = 1e-13 if dtype == np.float64 else 1e-5
        for word in range(3):
            assert np.allclose(sums.word_sums[word], units[words == word].sum(0), atol=bound)
        for sentence in (1, 2):
            own = sentences == sentence
            together = exact[own].sum(0)
            value = together @ units[own].sum(0) / np.linalg.norm(together) / own.sum()
            assert sums.values[sentence] == pytest.approx(value, abs=bound)
        assert np.isnan(sums.values[[0, 3]]).all()
        assert sums.runs.tolist() == [[3, 2], [0, 3]]
        assert np.allclose(sums.run_sums[1], [exact[:3].sum(0), units[:3].sum(0)], atol=bound)
        assert np.allclose(sums.run_sums[0], [exact[10:].sum(0), units[10:].sum(0)], atol=bound)
        assert np.allclose(sums.total, units[:10].sum(0), atol=bound)
        assert not sums.word_totals.any()


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
@pytest.mark.parametrize("size", [5, 64, 130])
def test_sums_of_unit_and_plain_vectors(target: int, dtype: Any, size: int) -> None:
    """The first word has more vectors than are read at a time and than a sum has before it moves to its total."""
    generator = np.random.default_rng(size)
    vectors = generator.standard_normal((300, size)).astype(dtype)
    words = generator.choice(4, 300, p=(0.1, 0.6, 0.2, 0.1)) - 1
    vectors[[3, 250]], words[[3, 250]] = 0, 0
    vectors[words < 0] = np.nan
    sums = UnitSums(size, np.float64 if dtype == np.float64 else np.float32, slots=[0, -1, -1])
    sums.word_sums, sums.word_totals = np.tile(sums.word_sums, 2), np.tile(sums.word_totals, 2)
    parts = (slice(0, 190), slice(190, 300))
    assert sum(sums.add(vectors[part], words[part]) for part in parts) == (words >= 0).sum() - 2
    found = sums.word_sums.astype(np.float64)
    found[0] += sums.word_totals[0]
    exact, units = vectors.astype(np.float64), units_of(vectors)
    expected = [np.append(units[words == word].sum(0), exact[words == word].sum(0)) for word in range(3)]
    assert np.allclose(found, expected, atol=1e-12 if dtype == np.float64 else 1e-4)
    n_first, n_second, n_third = (int((words == word).sum()) for word in range(3))
    assert sums.word_counts.tolist() == [[0, n_first % 64, n_first - 2], [-1, 0, n_second], [-1, 0, n_third]]
    vectors[np.flatnonzero(words == 1)[0], -1] = np.inf
    assert sums.add(vectors, words) == -1


def test_long_sums_keep_the_precision_of_float64(target: int) -> None:
    """Equal vectors, of which a sum in float32 is wrong by far more; the second word has no total."""
    vectors = np.tile(np.array([[0.3, -0.2, 0.9]], np.float32), (30_000, 1))
    words = np.zeros(len(vectors), np.int64)
    words[5:70] = 1
    sums = UnitSums(3, slots=[0, -1])
    for start in range(0, len(vectors), 2 * 8192):
        assert sums.add(vectors[start : start + 16384], words[start : start + 16384]) == len(vectors[start:][:16384])
    (unit,) = units_of(vectors[:1].astype(np.float64))
    in_float32 = np.cumsum(units_of(vectors).astype(np.float32), axis=0)[-1]
    assert np.abs(in_float32 / unit / 30_000 - 1).max() > 2e-5
    np.testing.assert_allclose(sums.total, 30_000 * unit, rtol=2e-6)
    np.testing.assert_allclose(sums.word_totals[0] + sums.word_sums[0], 29_935 * unit, rtol=2e-6)
    np.testing.assert_allclose(sums.word_sums[1], 65 * unit, rtol=1e-6)
    assert sums.word_counts.tolist() == [[0, 29_935 % 64, 29_935], [-1, 0, 65]]


@pytest.mark.parametrize("size", [12, 40, 200])
def test_sums_do_not_depend_on_memory_layout(target: int, size: int) -> None:
    stored = np.random.default_rng(0).normal(size=(7, size)).astype(np.float32)
    found = set()
    for gap in (0, 1, 4, 63):
        buffer = np.zeros(gap + 7 * size, np.float32)
        vectors = buffer[gap:].reshape(7, size)
        vectors[...] = stored
        sums = UnitSums(size, gap=gap)
        sums.add(vectors)
        found.add(sums.total.tobytes())
    assert len(found) == 1


def test_the_smallest_float16_is_scaled_to_length_one(target: int) -> None:
    tiny = np.zeros((1, 3), np.float16)
    tiny[0, 1] = np.float16(6e-8)
    sums = UnitSums(3)
    assert sums.add(tiny) == 1
    np.testing.assert_allclose(sums.total, [0, 1, 0], rtol=1e-6)


@pytest.mark.parametrize("value", [np.inf, -np.inf, np.nan])
def test_values_that_are_not_finite_are_refused(target: int, value: float) -> None:
    vectors = np.ones((3, 40), np.float16)
    vectors[1, 17] = value
    assert UnitSums(40).add(vectors) == -1
    sums = UnitSums(40)
    assert sums.add(np.full((1, 40), 65504, np.float16)) == 1
    np.testing.assert_allclose(sums.total, 1 / np.sqrt(40), rtol=1e-6)


@pytest.mark.slow
def test_without_the_extension_a_store_is_read_and_searched_alike(tmp_path: Path) -> None:
    made = make_store(tmp_path / "s.zarr", sentences=40)
    code = (
        "import numpy as np, sys, embstore as es\n"
        "from embstore import kernels\n"
        "assert kernels.compiled_name() is None\n"
        "store = es.open(sys.argv[1])\n"
        "near = es.neighbors(store, store.select(rows=[3, 17]), k=9, layers=2)\n"
        "geometry = es.geometry(store, layers=[0, 2])\n"
        "near.write_parquet(sys.argv[2]), geometry.write_parquet(sys.argv[3])\n"
        "np.save(sys.argv[4], store.vectors([5, 2, 9]))\n"
    )
    files = [tmp_path / name for name in ("near", "geometry", "vectors.npy")]
    environment = os.environ | {"EMBSTORE_PURE": "1"}
    subprocess.run([sys.executable, "-c", code, made.store.path, *files], check=True, env=environment)
    near = es.neighbors(made.store, made.store.select(rows=[3, 17]), k=9, layers=2)
    pl.testing.assert_frame_equal(pl.read_parquet(files[0]), near, rel_tol=1e-12)
    pl.testing.assert_frame_equal(pl.read_parquet(files[1]), es.geometry(made.store, layers=[0, 2]), abs_tol=1e-5)
    np.testing.assert_array_equal(np.load(files[2]), made.store.vectors([5, 2, 9]))
