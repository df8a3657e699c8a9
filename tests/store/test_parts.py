"""The small parts: strings, the rows of types, the arithmetic of layouts, bfloat16 and int8."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from embstore.errors import InvalidValueError, NonFiniteError, StoreMismatchError
from embstore.store import Strings
from embstore.store.arrays import frozen_arrays
from embstore.store.check.consistency import column_faults, occurrence_faults
from embstore.store.check.repair import repair_layout
from embstore.store.index import Contexts, Index, rows_by_type
from embstore.store.layout import SHARD_NBYTES, Layout, partition_rows
from embstore.store.vectors import bfloat16_bits, dequantize, float32_of_bfloat16, quantize
from tests.store.example import example
from tests.store_making import make_store


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
        assert (rows.tolist(), list(tmp_path.iterdir())) == (list(range(100)), [])


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
    assert (layout.span(0)[0], layout.span(layout.n_partitions - 1)[1]) == (0, rows)
    if layout.n_partitions > 1:
        assert layout.span(0)[1] == layout.span(1)[0] == size
    assert size == 256 or size // 2 < rows


def changed_columns(column: np.ndarray) -> Iterator[np.ndarray]:
    """Yield what a column that all checksums vouch for may be instead."""
    yield from (column[:0], column[:1], column[:-1], np.append(column, column[-1:]), column[None], column[::-1])
    info = np.iinfo(column.dtype)
    for value in (info.min, -1, 0, 1, info.max):
        if info.min <= value:
            yield np.full_like(column, value)
            for place in (0, len(column) // 2, -1):
                one = column.copy()
                one[place : place + 1 or None] = value
                yield one


def test_no_column_of_an_index_makes_its_check_fail(tmp_path: Path) -> None:
    """What is wrong is a line, whatever the column; and what passes is an index that can be read."""
    made = make_store(tmp_path / "s.zarr", sentences=30, years=True)
    metadata, first = made.store.metadata, made.store.index
    text = replace(first.text, subword_start=first.text.word_start, subword_stop=first.text.word_stop)
    subwords = text.subword_indptr
    starts = np.arange(0, 30, 3)
    contexts = Contexts(subwords[starts], subwords[np.minimum(starts + 3, 30)], first.indptr[np.append(starts, 30)])
    index = first.changed(contexts=contexts, text=text, subword=first.position)
    with rows_by_type(index.type, len(index.words), tmp_path) as by_type:
        columns = {name: array.copy() for name, array in frozen_arrays(metadata, index, by_type, None).items()}
    assert list(column_faults(columns, metadata)) == []
    assert {name.split("/")[0] for name in columns} >= {
        "contexts", "documents", "labels", "sentences", "subwords", "types", "words",
    }  # fmt: skip
    found = 0
    for name, column in columns.items():
        for other in changed_columns(column):
            changed = {**columns, name: other}
            faults = list(column_faults(changed, metadata))
            found += bool(faults)
            if not faults:
                again = Index(changed, metadata.fields)
                assert len(list(again.text)) == 30 == len(again.text.words_of(0, 30))
                assert len(again.to_dicts(np.arange(made.store.n_rows))) == made.store.n_rows
                assert [again.words[number] for number in again.type.tolist()] != []
                assert again.by_type[1].max() < made.store.n_rows
    assert found > 400


def test_the_fingerprint_is_of_what_made_the_rows_and_not_of_names(tmp_path: Path) -> None:
    made = example()
    path, first = made.make(tmp_path / "s.zarr").path, made.metadata
    model, corpus, extraction = first.model, first.corpus, first.extraction
    for same in (
        {"model": {**model, "name": "other"}},
        {"model": {**model, "revision": "abc"}},
        {"corpus": {**corpus, "name": "other.txt"}},
        {"software": {"embstore": "9"}},
    ):
        assert replace(first, **same).fingerprint == first.fingerprint  # type: ignore[arg-type]
        assert repair_layout(path, metadata=replace(first, **same), index=made.index) == []  # type: ignore[arg-type]
    for part, other in {
        "model": {"model": {**model, "num_hidden_layers": 7}},
        "corpus": {"corpus": {**corpus, "n_sentences": 1}},
        "extraction": {"extraction": {**extraction, "seed": 9}},
        "dtype": {"dtype": "float32"},
        "layers": {"layers": (0, 3, 8)},
    }.items():
        changed = replace(first, **other)  # type: ignore[arg-type]
        assert changed.fingerprint != first.fingerprint
        with pytest.raises(StoreMismatchError, match=f"made with another {part} than this plan"):
            repair_layout(path, metadata=changed, index=made.index)


def test_a_store_of_less_than_two_gibibytes_has_eight_partitions_or_larger_ones_of_64_mebibytes() -> None:
    rows = {n_rows: partition_rows(n_rows, 1024, "float32") for n_rows in (10**3, 10**5, 3 * 10**5, 10**6, 10**8)}
    assert rows == {10**3: 1024, 10**5: 2**14, 3 * 10**5: 2**15, 10**6: 2**16, 10**8: 2**16}


def nearest_bfloat16(value: np.float32) -> int:
    """The bits of the nearest bfloat16, found among the two neighbours; ties go to the even one."""
    low = int(value.view(np.uint32)) >> 16
    exact = float(value)

    def as_float(bits: int) -> float:
        if bits & 0x7FFF == 0x7F80:  # the step past the largest number counts as that step
            return (-1.0 if bits & 0x8000 else 1.0) * 2.0**128
        return float(np.array(bits << 16, np.uint32).view(np.float32))

    below, above = abs(exact - as_float(low)), abs(as_float(low + 1) - exact)
    return low if below < above or (below == above and low % 2 == 0) else low + 1


def test_bfloat16_rounds_to_nearest_even() -> None:
    random = np.random.default_rng(0)
    bits = random.integers(0, 2**32, 20_000, dtype=np.uint32)
    ties = (random.integers(0, 2**16, 5_000, dtype=np.uint32) << 16) | 0x8000
    values = np.concatenate([bits, ties]).view(np.float32)
    values = values[np.isfinite(values)]
    assert bfloat16_bits(values).tolist() == [nearest_bfloat16(value) for value in values]


def test_bfloat16_of_every_bits_is_itself_and_not_a_number_stays_none() -> None:
    bits = np.arange(2**16, dtype=np.uint16)
    values = float32_of_bfloat16(bits)
    numbers = ~np.isnan(values)
    np.testing.assert_array_equal(bfloat16_bits(values)[numbers], bits[numbers])
    values = np.array([0x7F800001, 0xFFFFFFFF, 0x7FC00000], np.uint32).view(np.float32)
    assert np.isnan(float32_of_bfloat16(bfloat16_bits(values))).all()
    infinite = np.array([np.inf, -np.inf, -0.0], np.float32)
    np.testing.assert_array_equal(float32_of_bfloat16(bfloat16_bits(infinite)), infinite)
    assert np.signbit(float32_of_bfloat16(bfloat16_bits(infinite))).tolist() == [False, True, True]


def test_int8_is_within_half_a_step() -> None:
    random = np.random.default_rng(1)
    vectors = random.normal(size=(3, 50, 20)).astype(np.float32) * np.float32(10.0) ** random.integers(
        -3, 4, (3, 50, 1)
    )
    vectors = vectors.astype(np.float32)
    center = vectors.mean(axis=1)
    vectors[1, 7] = center[1]
    arrays = quantize(vectors, center)
    assert arrays["hidden_states"].dtype == np.int8
    assert arrays["hidden_states"].min() >= -127
    assert (np.abs(arrays["hidden_states"]).max(axis=2) == 127).sum() == 149
    assert arrays["scale"][1, 7] == 0
    for layer in range(3):
        values = dequantize(arrays["hidden_states"][layer], arrays["scale"][layer], center[layer])
        step = arrays["scale"][layer][:, None]
        assert (np.abs(values - vectors[layer]) <= step * 0.5001 + np.abs(vectors[layer]) * 1e-6).all()
    np.testing.assert_array_equal(
        dequantize(arrays["hidden_states"][1], arrays["scale"][1], center[1])[7], vectors[1, 7]
    )


def test_int8_of_the_smallest_numbers_is_the_center() -> None:
    vectors = np.full((1, 1, 2), 1e-42, np.float32)
    arrays = quantize(vectors, np.zeros((1, 2), np.float32))
    assert arrays["scale"].tolist() == [[0.0]]
    assert not arrays["hidden_states"].any()


def test_int8_refuses_what_is_not_finite_and_a_center_of_another_shape() -> None:
    vectors = np.ones((2, 4, 3), np.float32)
    for value, center in ((np.nan, 0), (np.inf, 0), (-np.inf, 0), (3e38, -3e38)):  # the last difference is infinite
        vectors[1, 2, 0] = value
        with pytest.raises(NonFiniteError, match="row 2 of stored layer 1"):
            quantize(vectors, np.full((2, 3), center, np.float32))
    with pytest.raises(InvalidValueError, match=r"a center of shape \(3,\)"):
        quantize(np.ones((1, 2, 3), np.float32), np.zeros(3, np.float32))
