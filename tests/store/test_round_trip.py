"""Stores return what was written, with both backends and every dtype, compared with plain numpy."""

from __future__ import annotations

import pickle
from pathlib import Path

import numpy as np
import pytest

from embstore.errors import InvalidValueError
from embstore.store import Index, Strings, Text, create_store, open_store, verify
from embstore.store.vectors import VALUE_DTYPE
from tests.store.example import DTYPES, FORMS, SUFFIXES, all_files, example


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("suffix", SUFFIXES)
@pytest.mark.parametrize(("rows", "partition_rows"), [(1, 256), (256, 256), (700, 256), (700, 768)])
@pytest.mark.quick(3)
def test_every_row(tmp_path: Path, suffix: str, dtype: str, rows: int, partition_rows: int) -> None:
    made = example(rows=rows, dtype=dtype, partition_rows=partition_rows)
    store = made.make(tmp_path / f"s{suffix}")
    assert store.finished
    assert (store.n_rows, store.layers, store.dtype) == (rows, (0, 3, 5), dtype)
    assert store.source.committed.all()
    assert store.n_committed_rows == rows
    for place, layer in enumerate(store.layers):
        got = store.vectors(np.arange(rows), layers=layer)
        assert got.dtype == VALUE_DTYPE[store.dtype] == made.values.dtype
        np.testing.assert_array_equal(got, made.values[place])
        scanned = np.concatenate([block.copy() for _, block in store.scan(layer)])
        np.testing.assert_array_equal(scanned, made.values[place])
    np.testing.assert_array_equal(store.vectors(np.arange(rows)), made.values)
    np.testing.assert_array_equal(store.vectors([0], layers=[5, 0]), made.values[[2, 0], :1])


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_index_and_metadata(tmp_path: Path, suffix: str) -> None:
    made = example()
    store = made.make(tmp_path / f"s{suffix}")
    assert store.metadata == made.metadata
    expected, got = made.index.arrays(), store.index.arrays()
    assert set(got) == set(expected)
    for name, array in expected.items():
        assert got[name].dtype == array.dtype, name
        np.testing.assert_array_equal(got[name], array, err_msg=name)
        assert not got[name].flags.writeable or not got[name].size
    assert list(store.index.words) == FORMS
    assert list(store.index.labels["upos"].names) == ["NOUN", "VERB", "ADJ"]
    assert list(store.index.labels["nothing"].names) == []


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_words_lead_to_their_rows(tmp_path: Path, suffix: str) -> None:
    made = example()
    store = made.make(tmp_path / f"s{suffix}")
    for _ in range(2):  # the first lookups search the bytes, later ones use a table
        for number, form in enumerate(FORMS):
            assert store.index.type_of(form) == number
            rows = store.index.rows_of(number)
            assert rows.tolist() == [row for row, type_id in enumerate(made.index.type) if type_id == number]
        assert store.index.type_of("banks") is None
        assert store.index.type_of("ban") is None
    with pytest.raises(InvalidValueError, match="there is no type 8"):
        store.index.rows_of(8)


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_no_labels_and_no_text(tmp_path: Path, suffix: str) -> None:
    """Columns of no bytes at all: one type spelled "", one sentence that reads ""."""
    zero = np.zeros(3, np.int32)
    index = Index.of(
        type=zero,
        sentence=zero.astype(np.int64),
        position=np.arange(3, dtype=np.int32),
        subwords=np.ones(3, np.int16),
        words=Strings.of([""]),
        text=Text.of_words([[""]]),
        indptr=np.array([0, 3]),
        source=np.array([7]),
    )
    made = example(rows=3, labels=False)
    path = tmp_path / f"s{suffix}"
    create_store(path, metadata=made.metadata, index=index)
    made.fill(path)
    store = open_store(path)
    assert list(store.index.words) == list(store.index.text) == [""]
    assert (store.index.labels, store.index.source.tolist()) == ({}, [7])
    assert verify(path).ok


@pytest.mark.parametrize("dtype", ["float16", "int8"])
@pytest.mark.parametrize("suffix", SUFFIXES)
@pytest.mark.quick(2)
def test_same_bytes_however_it_was_written(tmp_path: Path, suffix: str, dtype: str) -> None:
    made = example(dtype=dtype)
    once, slowly = tmp_path / f"a{suffix}", tmp_path / f"b{suffix}"
    made.make(once)
    made.create(slowly)
    made.fill(slowly, [2])
    made.fill(slowly, [0])
    with pytest.warns(UserWarning, match="256 of 700 rows"):
        open_store(slowly)
    made.fill(slowly)
    assert all_files(once) == all_files(slowly)


def test_special_values_are_kept(tmp_path: Path) -> None:
    made = example(rows=4, dtype="bfloat16", layers=(0,), hidden_size=2)
    bits = np.array([[[0x7FC1, 0xFF80], [0x8000, 0x0001], [0x7F7F, 0x3F80], [0, 0xFFFF]]], np.uint16)
    made.arrays["hidden_states"][...] = bits
    for suffix in SUFFIXES:
        store = made.make(tmp_path / f"s{suffix}")
        got = store.vectors([0, 1, 2, 3], layers=0).view(np.uint32)
        assert got.tolist() == (bits[0].astype(np.uint32) << 16).tolist()


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_a_pickled_store_opens_where_it_arrives(tmp_path: Path, suffix: str) -> None:
    made = example()
    store = pickle.loads(pickle.dumps(made.make(tmp_path / f"s{suffix}")))
    np.testing.assert_array_equal(store.vectors([3, 600], layers=5), made.values[2, [3, 600]])
