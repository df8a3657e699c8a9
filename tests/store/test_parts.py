"""The small parts: strings, the rows of types, the arithmetic of layouts, the shard's index."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from embstore.errors import StoreDamagedError
from embstore.store import Strings
from embstore.store.check.consistency import occurrence_faults
from embstore.store.index import rows_by_type
from embstore.store.layout import SHARD_NBYTES, Layout
from embstore.store.zarr.format import parse_index, shard_index


@given(st.lists(st.text(max_size=6), max_size=30), st.text(max_size=6))
def test_strings(items: list[str], other: str) -> None:
    strings = Strings.of(items)
    assert list(strings) == items
    assert [strings[place] for place in range(len(items))] == items
    assert strings.slice(1, 3) == items[1:3]
    for item in [*items, other]:
        assert strings.find(item) == (items.index(item) if item in items else None)
    with pytest.raises(IndexError):
        strings[len(items)]


@given(types=st.lists(st.integers(0, 9), max_size=200), block_rows=st.integers(1, 60))
def test_rows_by_type(tmp_path_factory: pytest.TempPathFactory, types: list[int], block_rows: int) -> None:
    folder = tmp_path_factory.getbasetemp()
    with rows_by_type(np.array(types, np.int32), 10, folder, block_rows=block_rows) as (indptr, rows):
        for number in range(10):
            expected = [row for row, type_id in enumerate(types) if type_id == number]
            assert rows[indptr[number] : indptr[number + 1]].tolist() == expected
    assert len(indptr) == 11


def test_rows_by_type_leave_no_file(tmp_path: Path) -> None:
    with rows_by_type(np.zeros(100, np.int32), 1, tmp_path, block_rows=10) as (_, rows):
        assert rows.tolist() == list(range(100))
        assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("occurrences", [[0, 0, 2], [1, 0, 2], [0, 2, 1], [0, 1, 3]])
def test_rows_of_types_must_be_distinct_and_in_order(occurrences: list[int]) -> None:
    types, indptr = np.array([0, 0, 1], np.int32), np.array([0, 2, 3])
    assert list(occurrence_faults(types, 2, indptr, np.array([0, 1, 2]))) == []
    assert len(list(occurrence_faults(types, 2, indptr, np.array(occurrences)))) == 1


@given(
    rows=st.integers(1, 10**9),
    layers=st.integers(1, 50),
    hidden_size=st.integers(1, 10_000),
    dtype=st.sampled_from(["float32", "float16", "bfloat16", "int8"]),
)
def test_partitions_cover_all_rows_once(rows: int, layers: int, hidden_size: int, dtype: str) -> None:
    layout = Layout.of(n_rows=rows, layers=tuple(range(layers)), hidden_size=hidden_size, dtype=dtype)
    size = layout.partition_rows
    assert size & (size - 1) == 0
    assert size >= 256
    assert size == 256 or layout.partition_nbytes <= SHARD_NBYTES
    assert layout.span(0)[0] == 0
    assert layout.span(layout.n_partitions - 1)[1] == rows
    if layout.n_partitions > 1:
        assert layout.span(0)[1] == layout.span(1)[0] == size
    assert size == 256 or size // 2 < rows


@given(outer=st.integers(1, 4), inner=st.integers(1, 5), data=st.data())
def test_shard_index(outer: int, inner: int, data: st.DataObject) -> None:
    written = data.draw(st.integers(1, inner))
    payload = np.zeros(outer * written * 8, np.uint8).tobytes()
    shard = np.frombuffer(payload + shard_index((outer, inner), written, 8), np.uint8)
    places = parse_index(shard, (outer, inner), 8, name="s")
    expected = [
        [(row * written + column) * 8 if column < written else -1 for column in range(inner)] for row in range(outer)
    ]
    assert places.tolist() == expected
    bit = data.draw(st.integers(8 * len(payload), 8 * len(shard) - 1))
    flipped = shard.copy()
    flipped[bit // 8] ^= 1 << bit % 8
    with pytest.raises(StoreDamagedError):
        parse_index(flipped, (outer, inner), 8, name="s")


def test_shard_index_that_points_outside() -> None:
    for cut in (4, 8, 16):
        shard = np.frombuffer(bytes(16 - cut) + shard_index((1, 2), 2, 8), np.uint8)
        with pytest.raises(StoreDamagedError, match="names bytes beyond its end"):
            parse_index(shard, (1, 2), 8, name="s")
    with pytest.raises(StoreDamagedError, match="cut short"):
        parse_index(np.zeros(20, np.uint8), (1, 2), 8, name="s")
