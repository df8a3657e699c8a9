"""Gather and scan against indexing of an array, for any rows, blocks and partitions; what is read ahead."""

from __future__ import annotations

import errno
import gc
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from embstore import kernels
from embstore.errors import InvalidValueError, MissingRowsError, StoreDamagedError, UnfinishedStoreWarning
from embstore.store import Store, StoreWriter, open_store
from embstore.store import verify as verify_store
from embstore.store.arrays import ArraySpec
from embstore.store.reading import ahead, mapped
from embstore.store.reading import rows as reading_rows
from embstore.store.reading.ahead import read_ahead
from embstore.store.vectors import VALUE_DTYPE
from embstore.store.zarr import reader as zarr_reader
from tests.store.example import DTYPES, SUFFIXES, Example, example

CASES = [
    (dtype, rows, partition_rows, suffix)
    for dtype in DTYPES
    for rows, partition_rows in [(300, 512), (1500, 256), (2100, 1280), (1025, 768)]
    for suffix in SUFFIXES
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("reading")


@cache
def opened(folder: Path, dtype: str, rows: int, partition_rows: int, suffix: str) -> tuple[Example, Store]:
    made = example(rows=rows, dtype=dtype, partition_rows=partition_rows, layers=(0, 4), hidden_size=6)
    return made, made.make(folder / f"{dtype}-{rows}{suffix}")


@settings(max_examples=80)
@given(data=st.data(), case=st.sampled_from(CASES))
def test_gather_is_indexing(folder: Path, data: st.DataObject, case: tuple[str, int, int, str]) -> None:
    made, store = opened(folder, *case)
    rows = data.draw(st.lists(st.integers(0, store.n_rows - 1), max_size=60))
    if data.draw(st.booleans()):
        rows = sorted(rows)
    layers = data.draw(st.lists(st.sampled_from([0, 4]), min_size=1, max_size=3))
    places = [store.layers.index(layer) for layer in layers]
    expected = made.values[places][:, rows]
    np.testing.assert_array_equal(store.vectors(rows, layers=layers), expected)
    for kind in {VALUE_DTYPE[store.dtype]} | ({np.dtype("f4")} if store.dtype == "float16" else set()):
        out = np.full((len(rows), store.hidden_size), 7, kind)
        assert store.vectors(np.array(rows, np.uint16), layers=layers[0], out=out).shape == out.shape
        np.testing.assert_array_equal(out, expected[0])


@settings(max_examples=80)
@given(data=st.data(), case=st.sampled_from(CASES))
def test_scan_is_slicing(folder: Path, data: st.DataObject, case: tuple[str, int, int, str]) -> None:
    made, store = opened(folder, *case)
    start, stop = sorted(data.draw(st.lists(st.integers(0, store.n_rows), min_size=2, max_size=2)))
    block_rows = data.draw(st.one_of(st.none(), st.integers(1, 900)))
    copy = data.draw(st.booleans())
    row = start
    for first, block in store.scan(4, start, stop, block_rows=block_rows, copy=copy):
        assert first == row
        assert block_rows is None or len(block) <= block_rows
        np.testing.assert_array_equal(block, made.values[1, first : first + len(block)])
        row += len(block)
    assert row == stop


@settings(max_examples=12)
@given(data=st.data(), suffix=st.sampled_from(SUFFIXES), dtype=st.sampled_from(["float16", "int8"]))
def test_unfinished(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject, suffix: str, dtype: str) -> None:
    made = example(rows=900, dtype=dtype)
    written = data.draw(st.sets(st.integers(0, 3), max_size=3))
    path = made.create(tmp_path_factory.mktemp("u") / f"s{suffix}")
    made.fill(path, sorted(written))
    with pytest.warns(UnfinishedStoreWarning, match=rf"\({4 - len(written)} of 4 partitions\).*resume the extraction"):
        store = open_store(path)
    there = np.isin(np.arange(900) // 256, sorted(written))
    expected = made.values[1].astype(np.float32)
    expected[~there] = np.nan
    rows = data.draw(st.lists(st.integers(0, 899), min_size=1, max_size=40))
    np.testing.assert_array_equal(store.vectors(rows, layers=3, missing="nan"), expected[rows])
    absent = int((~there[rows]).sum())
    if absent:
        with pytest.raises(MissingRowsError, match=f"{absent} of the {len(rows)} rows.*not written yet"):
            store.vectors(rows, layers=3)
    start, stop = sorted(data.draw(st.lists(st.integers(0, 900), min_size=2, max_size=2)))
    blocks = store.scan(3, start, stop, block_rows=100, missing="skip")
    seen = [(first + place, row.copy()) for first, block in blocks for place, row in enumerate(block)]
    assert [row for row, _ in seen] == [row for row in range(start, stop) if there[row]]
    assert all(np.array_equal(vector, expected[row]) for row, vector in seen)
    full = [block.copy() for _, block in store.scan(3, start, stop, missing="nan")]
    np.testing.assert_array_equal(np.concatenate([np.empty((0, 16), np.float32), *full]), expected[start:stop])
    if not there[start:stop].all():
        with pytest.raises(MissingRowsError, match=f"{int((~there[start:stop]).sum())} of the rows {start} to {stop}"):
            store.scan(3, start, stop)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("suffix", SUFFIXES)
@pytest.mark.quick(3)
def test_a_block_that_is_held_does_not_change(tmp_path: Path, suffix: str, dtype: str) -> None:
    made = example(rows=1000, dtype=dtype)
    store = made.make(tmp_path / f"s{suffix}")
    for first, block in list(store.scan(0, block_rows=90)):
        np.testing.assert_array_equal(block, made.values[0, first : first + len(block)])
    rows: list[tuple[int, NDArray[Any]]] = []  # a view of a view holds the buffer too
    for first, block in store.scan(0, block_rows=90):
        rows.append((first + 5, block[5:6].T))
    assert all(np.array_equal(row[:, 0], made.values[0, number]) for number, row in rows)


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_views_are_the_mapped_file_and_cannot_be_written(tmp_path: Path, suffix: str) -> None:
    made = example(rows=1000, dtype="float32")
    store = made.make(tmp_path / f"s{suffix}")
    rows = 0
    for _ in range(2):
        for first, block in store.scan(3, 10, 990, block_rows=200, copy=False):
            assert not block.flags.writeable
            assert not block.flags.owndata
            np.testing.assert_array_equal(block, made.values[1, first : first + len(block)])
            rows += len(block)
    assert rows == 2 * 980
    same = [block for _, block in store.scan(3, 0, 256, copy=False)]
    assert [b.ctypes.data for b in same] == [b.ctypes.data for _, b in store.scan(3, 0, 256, copy=False)]


def test_buffers_are_reused(tmp_path: Path) -> None:
    store = example(rows=1000).make(tmp_path / "s.zarr")
    addresses = [block.ctypes.data for _, block in store.scan(0, block_rows=50)]
    assert (len(addresses), len(set(addresses))) == (20, 2)


@contextmanager
def no_collection() -> Iterator[None]:
    """Close no file by garbage collection, which takes half a second when asked for."""
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def _descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def test_readers_see_what_a_writer_commits(tmp_path: Path) -> None:
    for suffix in SUFFIXES:
        made = example()
        path = made.create(tmp_path / f"s{suffix}")
        with pytest.warns(UnfinishedStoreWarning):
            store = open_store(path)
        for partition in (1, 0, 2):
            made.fill(path, [partition])
            assert not store.source.committed[partition]
            store.source.refresh()
            assert store.source.committed[partition]
            start, stop = store.source.layout.span(partition)
            np.testing.assert_array_equal(store.vectors(np.arange(start, stop), layers=5), made.values[2, start:stop])
        assert not (store.finished and suffix == ".zarr")
        made.fill(path)
        store.source.refresh()
        assert store.finished


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_refresh_sees_a_partition_that_was_written_again(tmp_path: Path, suffix: str) -> None:
    made, other = example(), example(seed=1)
    store = made.make(tmp_path / f"s{suffix}")
    store.vectors([300], layers=0)  # maps the partition
    with StoreWriter(tmp_path / f"s{suffix}") as writer:
        writer.discard([1])
        writer.write(1, other.partition(1))
        writer.finish()
    digest = store.digest
    store.source.refresh()
    assert store.digest != digest
    np.testing.assert_array_equal(store.vectors(np.arange(256, 512), layers=0), other.values[0, 256:512])


def test_bad_arguments_are_refused_in_one_line(tmp_path: Path) -> None:
    store = example().make(tmp_path / "s.zarr")
    wrong: list[tuple[Any, str]] = [
        (lambda: store.vectors([0], layers=1), "layer 1 is not stored: choose among 0, 3, 5"),
        (lambda: store.vectors([700], layers=0), "there is no row 700: the store has rows 0 to 699"),
        (lambda: store.vectors([3, -1], layers=0), "there is no row -1"),
        (lambda: store.vectors([[1]], layers=0), "rows must be a list of integers"),
        (
            lambda: store.vectors([1], layers=0, out=np.empty((1, 16))),
            "out must be a C-contiguous float16 array",
        ),
        (lambda: store.scan(0, 5, 3), "stop 3 is not allowed: give 5 to 700"),
        (lambda: store.vectors([1], layers=0, out=[1]), "out must be a C-contiguous"),  # type: ignore[arg-type]
        (lambda: store.vectors([[1], [2, 3]], layers=0), "rows must be a list of integers, not [[1], [2, 3]]"),
        (lambda: store.select(words="\ud800"), "words '\\ud800' is not text"),
        (lambda: store.select(labels={"upos": 3}), "no occurrence has upos '3'"),  # type: ignore[dict-item]
        (lambda: store.select().vectors(dtype="float99"), "dtype 'float99' is not"),
        (lambda: store.index.type_of(3), "a word must be a string, not 3"),  # type: ignore[arg-type]
        (lambda: store.index.rows_of("bank"), "there is no type bank"),  # type: ignore[arg-type]
        (lambda: store.with_labels("x", 3), "3 are not labels of 'x'"),
        (lambda: open_store(3), "a store is named by its path or URL, not by 3"),  # type: ignore[arg-type]
        (lambda: open_store("a\0b"), "'a\\x00b' cannot be the path of a store"),
        (lambda: open_store(tmp_path / "s.zarr", verify="all"), 'verify must be "lazy"'),  # type: ignore[arg-type]
    ]
    for call, message in wrong:
        with pytest.raises(InvalidValueError) as caught:
            _ = getattr(call(), "rows", ())
        assert message in str(caught.value)


def test_a_lock_that_cannot_be_removed_is_not_a_lock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = example().make(tmp_path / "s.zarr")

    def fail(*arguments: object, **options: object) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    with StoreWriter(store.path) as writer:
        monkeypatch.setattr(os, "unlink", fail)
        writer.finish()
    monkeypatch.undo()
    assert StoreWriter(store.path).missing() == []


@pytest.mark.slow
def test_more_shards_than_are_mapped_at_a_time(tmp_path: Path) -> None:
    """In several threads, of which each releases shards that the others read."""
    made = example(rows=256 * 12 - 100, layers=(0, 4), hidden_size=24, labels=False)
    path = made.make(tmp_path / "s.zarr").path
    store = open_store(path)
    store.source.reader.max_mapped = 3  # type: ignore[union-attr]
    gc.collect()
    before = _descriptors()

    def check(seed: int) -> int:
        random = np.random.default_rng(seed)
        for _ in range(20):
            rows = random.integers(0, store.n_rows, int(random.integers(1, 300)))
            np.testing.assert_array_equal(store.vectors(rows), made.values[:, rows])
        return seed

    assert check(0) == 0
    assert _descriptors() <= before + 2 * 3
    with ThreadPoolExecutor(6) as threads:
        assert list(threads.map(check, range(1, 7))) == [1, 2, 3, 4, 5, 6]
    scanned = np.concatenate([block.copy() for _, block in store.scan(4, copy=False)])
    np.testing.assert_array_equal(scanned, made.values[1])
    assert _descriptors() <= before + 2 * 3


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_rows_and_buffers_of_every_kind(tmp_path: Path, suffix: str) -> None:
    made = example()
    store = made.make(tmp_path / f"s{suffix}")
    rows = np.array([699, 3, 3, 0, 256, 255, 511, 512] * 5)
    of_bytes = rows % 200
    for of_kind in (rows[::2], rows.astype(">i8"), rows.astype(np.uint64), list(rows), of_bytes.astype(np.uint8)):
        numbers = np.asarray(of_kind).astype(np.int64)
        np.testing.assert_array_equal(store.vectors(of_kind, layers=3), made.values[1, numbers])
    assert store.vectors([], layers=None).shape == (3, 0, 16)
    buffer = np.zeros((50, 16), np.float16)
    assert np.shares_memory(store.vectors(rows, layers=3, out=buffer[5:45]), buffer)
    np.testing.assert_array_equal(buffer[5:45], made.values[1, rows])
    assert not buffer[:5].any()
    assert not buffer[45:].any()
    locked = np.zeros((40, 16), np.float16)
    locked.flags.writeable = False
    for wrong in (locked, buffer[:39], np.zeros((40, 16), np.float16, "F"), np.zeros((40, 32), np.float16)[:, ::2]):
        with pytest.raises(InvalidValueError, match="out must be a C-contiguous float16 array"):
            store.vectors(rows, layers=3, out=wrong)
        assert not wrong[:5].any()
    for missing in (2**63, 2**64 - 1):
        with pytest.raises(InvalidValueError, match=f"there is no row {missing}"):
            store.vectors(np.array([0, missing], np.uint64), layers=3)


@pytest.mark.skipif(kernels.compiled_name() is None, reason="numpy does not time its copies")
def test_rows_that_wait_for_the_disk_are_requested_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is requested are the pages of the rows, of every file, each once and in order."""
    made = example(rows=2000, partition_rows=512, hidden_size=2048, layers=(0, 1), dtype="float32")
    store = made.make(tmp_path / "s.zarr")
    asked: list[tuple[NDArray[np.uint64], int]] = []
    monkeypatch.setattr(mapped, "will_need", lambda starts, nbytes, *_: asked.append((starts, nbytes)))
    monkeypatch.setattr(mapped, "_COLD_NANOSECONDS_A_ROW", -1)
    rows = np.random.default_rng(0).integers(0, 2000, 100)
    found = store.vectors(rows, layers=1)
    np.testing.assert_array_equal(found, made.values[1, rows])
    [(starts, nbytes)] = asked
    assert nbytes == 8192
    assert (np.diff(starts.astype(np.int64)) >= 0).all()
    views = {first: view.ctypes.data for first, view in store.scan(1, block_rows=512, copy=False)}
    assert starts.tolist() == sorted(views[row // 512 * 512] + row % 512 * 8192 for row in rows.tolist())
    store.vectors(rows[:16], layers=1)
    monkeypatch.setattr(mapped, "_COLD_NANOSECONDS_A_ROW", 2**50)
    store.vectors(rows, layers=1)
    assert len(asked) == 1


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_a_scan_requests_its_rows_ahead_and_waits_for_no_index(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, suffix: str
) -> None:
    """The bytes requested are those of the rows, each once, and before them the index of each shard."""
    made = example(rows=2000, partition_rows=512, layers=(0, 3, 7), labels=False)
    store = open_store(made.make(tmp_path / f"s{suffix}").path)
    asked: list[bytes] = []
    monkeypatch.setattr(
        mapped, "request", lambda file, start, stop: asked.append(Path(file.path).read_bytes()[start:stop])
    )
    monkeypatch.setattr(zarr_reader, "request", mapped.request)
    monkeypatch.setattr(reading_rows, "reads_far_ahead", lambda path: False)
    monkeypatch.setattr(reading_rows, "is_resident", lambda start, nbytes: False)
    placed: list[int] = []
    place = mapped.MappedLayer.place
    monkeypatch.setattr(mapped.MappedLayer, "place", lambda *shard: (placed.append(len(asked)), place(*shard)))
    blocks = [block.copy() for _, block in store.scan(3, 300, 1700)]
    indexes = asked[0:8:2] if suffix == ".zarr" else []
    assert b"".join(asked[1::2] if indexes else asked) == made.values[1, 300:1700].tobytes()
    assert np.concatenate(blocks).tobytes() == made.values[1, 300:1700].tobytes()
    assert [len(index) for index in indexes] == [3 * 2 * 16 + 4] * len(indexes)
    assert not indexes or placed == [8] * len(indexes)  # after all requests
    asked.clear()
    for resident, far, copy in ((True, False, False), (False, True, True), (False, True, False)):
        monkeypatch.setattr(reading_rows, "reads_far_ahead", lambda path, far=far: far)
        monkeypatch.setattr(reading_rows, "is_resident", lambda start, nbytes, resident=resident: resident)
        blocks = [block.copy() for _, block in store.scan(3, 300, 1700, copy=copy)]
        assert np.concatenate(blocks).tobytes() == made.values[1, 300:1700].tobytes()
    assert not any(asked)  # what is in memory, or the system reads ahead


@pytest.mark.parametrize("suffix", SUFFIXES)
@pytest.mark.quick(1)
def test_a_store_that_is_no_longer_used_holds_no_file(tmp_path: Path, suffix: str) -> None:
    path = example(rows=1000).make(tmp_path / f"s{suffix}").path
    with no_collection():
        before = _descriptors()
        store = open_store(path)
        store.vectors(np.arange(1000), layers=0)
        list(store.scan(0))
        assert _descriptors() > before
        del store
        assert _descriptors() == before


def test_a_chunk_beyond_the_end_of_its_file_is_refused(tmp_path: Path) -> None:
    """The last chunk may end with its last row."""
    (tmp_path / "file").write_bytes(bytes(range(40)))
    file = mapped.MappedFile(tmp_path / "file")
    spec = ArraySpec("a", (1, 7, 2), np.dtype("<i4"), ("x", "y", "z"), 9, (1, 9, 2), (1, 3, 2), {})
    layer = mapped.MappedLayer(spec, 3)
    layer.place(0, file, np.array([24, 0, 32]))  # the first one needs 24 bytes of the 16 left, the last one 8
    out = np.empty((2, 2), "<i4")
    layer.take(np.array([6, 4]), [file], out)
    assert out[0].tobytes() == bytes(range(32, 40))
    assert out[1].tobytes() == bytes(range(8, 16))
    with pytest.raises(StoreDamagedError, match="beyond the end of its file"):
        layer.take(np.array([6, 0]), [file], out)


@pytest.mark.parametrize("name", ["types/form", "labels/upos/name"])
def test_names_that_damage_has_made_equal_are_one_line(tmp_path: Path, name: str) -> None:
    path = tmp_path / "s.zarr"
    example().make(path)
    names = path / f"{name}_bytes/c/0"
    names.write_bytes(bytes(names.stat().st_size))
    with pytest.raises(StoreDamagedError, match=r"names of the column .* are not distinct: run"):
        open_store(path).table()
    assert not verify_store(path).ok


@pytest.mark.parametrize(("quick_seconds", "by_thread"), [(1e9, 0), (-1.0, 7)], ids=["quick", "slow"])
@pytest.mark.parametrize("n_ahead", [1, 2])
def test_items_stay_valid_until_the_next(
    monkeypatch: pytest.MonkeyPatch, quick_seconds: float, by_thread: int, n_ahead: int
) -> None:
    monkeypatch.setattr(ahead, "QUICK_SECONDS", quick_seconds)
    memory, threads = [-1] * (n_ahead + 1), []

    def read(number: int, place: int) -> int:
        memory[place] = number
        threads.append(threading.current_thread() is not threading.main_thread())
        return place

    for number, place in enumerate(read_ahead(read, 9, n_ahead=n_ahead)):
        assert memory[place] == number
        assert len(threads) <= number + 1 + n_ahead
    assert number == 8
    assert sum(threads) == by_thread, "the first two show that reading is slow"
    assert threads == sorted(threads)


def test_a_quick_item_between_slow_ones_keeps_the_thread_away(monkeypatch: pytest.MonkeyPatch) -> None:
    now, seconds, threads = [0.0], [9, 0, 9, 0, 9, 9, 0, 0], []
    monkeypatch.setattr(ahead.time, "perf_counter", lambda: now[0])

    def read(number: int, _: int) -> None:
        now[0] += seconds[number]
        threads.append(threading.current_thread() is not threading.main_thread())

    assert (len(list(read_ahead(read, 8))), threads) == (8, [False] * 6 + [True] * 2)


@pytest.mark.parametrize("wrong", [0, 5])
def test_an_error_is_raised_in_place_of_its_item_and_no_thread_is_left(
    monkeypatch: pytest.MonkeyPatch, wrong: int
) -> None:
    monkeypatch.setattr(ahead, "QUICK_SECONDS", -1.0)
    before = threading.enumerate()

    def read(number: int, _: int) -> int:
        if number == wrong:
            raise ValueError(f"item {number}")
        return number

    found: list[int] = []
    with pytest.raises(ValueError, match=f"item {wrong}"):
        found.extend(read_ahead(read, 9))
    assert found == list(range(wrong))
    items = read_ahead(lambda number, _: number, 9)
    assert [next(items) for _ in range(4)] == [0, 1, 2, 3]
    items.close()
    assert set(threading.enumerate()) <= set(before)
    assert list(read_ahead(read, 0)) == []


def test_a_loop_that_is_left_halfway_lets_the_process_end() -> None:
    code = (
        "import time; from embstore.store.reading.ahead import read_ahead\n"
        "items = read_ahead(lambda number, _: time.sleep(0.005), 99)\n"
        "for _ in range(4): next(items)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=600)
