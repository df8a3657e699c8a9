"""The small parts: strings, the rows of types, the arithmetic of layouts."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from embstore.store import Strings
from embstore.store.check.consistency import occurrence_faults
from embstore.store.index import rows_by_type
from embstore.store.layout import SHARD_NBYTES, Layout


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
