"""A store in a bucket or on the web reads as the same store on a disk, by few requests, and never wrong."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import numpy as np
import pytest

import embstore as es
from embstore.errors import (
    InvalidValueError,
    MissingRowsError,
    StorageError,
    StoreDamagedError,
    StoreNotFoundError,
    UnfinishedStoreWarning,
)
from embstore.store import Store, open_store, source, verify
from embstore.store.storage import files
from embstore.store.vectors import float32_of_bfloat16
from embstore.store.zarr import remote
from embstore.store.zarr.remote import runs_of
from tests.object_server import Bucket, Fault
from tests.store.example import DTYPES, Example, example
from tests.store_making import make_store
from tests.web_host import WebHost, web_host

KEY = "stores/x.zarr"
SHARD = r"hidden_states/c/0/\d+/0$"


def upload(bucket: Bucket, made: Example, tmp_path: Path) -> tuple[Store, Store]:
    """The same store on a disk and in the bucket."""
    near = made.make(tmp_path / "x.zarr")
    return near, open_store(bucket.upload(tmp_path / "x.zarr", KEY))


def shard_requests(bucket: Bucket) -> list[tuple[str, int, int]]:
    """(key, first byte, byte past the last) of each request that read rows; those from the end read an index."""
    found = []
    for request in bucket.proxy.requests:
        if "/hidden_states/c/" in request.key and request.range and not request.range.startswith("bytes=-"):
            first, last = request.range.removeprefix("bytes=").split("-")
            found.append((request.key, int(first), int(last) + 1))
    return found


@pytest.mark.parametrize(
    "dtype", ["float16", *(pytest.param(name, marks=pytest.mark.slow) for name in DTYPES if name != "float16")]
)
def test_gather_and_scan_equal_those_of_the_disk(bucket: Bucket, tmp_path: Path, dtype: str) -> None:
    near, far = upload(bucket, example(dtype=dtype), tmp_path)
    assert (far.n_rows, far.layers, far.finished, far.digest) == (near.n_rows, near.layers, True, near.digest)
    random = np.random.default_rng(1)
    for count in (0, 1, 50, 900):
        rows = random.integers(0, near.n_rows, count)
        assert np.array_equal(far.vectors(rows, layers=3), near.vectors(rows, layers=3))
        wide = np.empty((1, count, near.hidden_size), np.float32)
        assert np.array_equal(far.vectors(rows, layers=[3], out=wide)[0], near.vectors(rows, layers=3))
        assert np.array_equal(far.vectors(rows), near.vectors(rows))
        assert np.array_equal(far.vectors(rows, layers=[5, 0, 5]), near.vectors(rows, layers=[5, 0, 5]))
    assert np.array_equal(far.vectors(np.arange(near.n_rows)), near.vectors(np.arange(near.n_rows)))
    for start, stop, size in ((0, 700, None), (100, 600, 7), (255, 257, None)):
        for (first, mine), (other, theirs) in zip(
            far.scan(5, start, stop, block_rows=size), near.scan(5, start, stop, block_rows=size), strict=True
        ):
            assert first == other
            assert np.array_equal(mine, theirs)


@pytest.mark.parametrize(
    ("count", "layers", "rows"),
    [(3_000, (0, 1, 2), 20), pytest.param(20_000, (0, 1), 1_000, marks=pytest.mark.slow)],
    ids=["20", "1000"],
)
def test_a_gather_asks_once_for_each_run_and_for_no_shard_whole(
    bucket: Bucket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, count: int, layers: tuple[int, ...], rows: int
) -> None:
    monkeypatch.setattr("embstore.store.zarr.remote.GAP_NBYTES", 512)
    near, far = upload(bucket, example(rows=count, layers=layers, partition_rows=1024), tmp_path)
    wanted = np.random.default_rng(2).choice(count, rows, replace=False)
    bucket.proxy.reset()
    assert np.array_equal(far.vectors(wanted), near.vectors(wanted))
    runs = oracle_runs(wanted, layers=len(layers), row_nbytes=32, partition_rows=1024, count=count, gap=512)
    asked = shard_requests(bucket)
    assert sorted((int(key.split("/")[-2]), first, last) for key, first, last in asked) == sorted(runs)
    indexes = len({partition for partition, _, _ in runs})
    made = len(runs) + indexes + 1  # whether the store is still the one that was opened
    assert len(bucket.proxy.requests) == made
    shard = (tmp_path / "x.zarr/hidden_states/c/0/0/0").stat().st_size
    assert max(request.nbytes for request in bucket.proxy.requests) < shard / len(layers)
    far.vectors(wanted, layers=1)
    assert not [request for request in bucket.proxy.requests[made:] if "bytes=-" in str(request.range)]


def oracle_runs(
    rows: np.ndarray, *, layers: int, row_nbytes: int, partition_rows: int, count: int, gap: int
) -> set[tuple[int, int, int]]:
    """The runs (partition, first byte, byte past the last) of rows with gaps of at most `gap`, one row at a time."""
    places = set()
    for row in rows.tolist():
        partition, local = divmod(row, partition_rows)
        held = min(partition_rows, -(-(count - partition * partition_rows) // 256) * 256)
        places |= {(partition, (layer * held + local) * row_nbytes) for layer in range(layers)}
    runs: list[list[int]] = []
    for partition, start in sorted(places):
        if runs and runs[-1][0] == partition and start - runs[-1][2] <= gap:
            runs[-1][2] = start + row_nbytes
        else:
            runs.append([partition, start, start + row_nbytes])
    return {(partition, first, last) for partition, first, last in runs}


def test_long_runs_are_cut() -> None:
    starts = np.arange(10_000) * 2048
    runs = runs_of(starts, 2048, 0)
    assert runs[0] == (0, 2048)
    assert [first for first, _ in runs[1:]] == [last for _, last in runs[:-1]]
    assert runs_of(starts[:0], 2048, 0) == []
    assert runs_of(np.zeros(5, np.int64), 2048, 0) == [(0, 5)]


def test_opening_and_a_word_ask_for_little(bucket: Bucket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    upload(bucket, example(rows=5000, partition_rows=512), tmp_path)
    bucket.proxy.reset()
    far = open_store(f"{bucket.url}/{KEY}")
    opening = [request.key.removeprefix(f"{KEY}/") for request in bucket.proxy.requests]
    assert sorted(set(opening)) == [
        "appended/0001.zarr/zarr.json", "commits/c/0/0", "hidden_states/.appended/parts.json",
        "hidden_states/zarr.json", "scale/zarr.json", "zarr.json",
    ]  # fmt: skip
    bucket.proxy.reset()
    monkeypatch.setattr(source, "CHECKED_NBYTES", 0)
    rows = far.index.rows_of(0)
    assert len(bucket.proxy.requests) == 23, "each column once, but for those of words and subwords"
    bucket.proxy.reset()
    assert far.index.text.words(0)[0] == "wörd"
    assert len(bucket.proxy.requests) == 5
    bucket.proxy.reset()
    far.vectors(rows[:1], layers=0)
    assert len(bucket.proxy.requests) == 3, "an index, whether the store is still the one opened, and a row"
    far.vectors(rows[:1], layers=3)
    assert len(bucket.proxy.requests) == 4


@pytest.mark.slow
def test_a_scan_reads_windows_ahead_and_no_other_layer(
    bucket: Bucket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(remote, "WINDOW_NBYTES", 4096)
    near, far = upload(bucket, example(rows=2000, partition_rows=512), tmp_path)
    bucket.proxy.reset()
    for (_, mine), (_, theirs) in zip(
        far.scan(3, 100, 1500, block_rows=50), near.scan(3, 100, 1500, block_rows=50), strict=True
    ):
        assert np.array_equal(mine, theirs)
    asked = shard_requests(bucket)
    assert sum(last - first for _, first, last in asked) == 1400 * 32
    assert max(last - first for _, first, last in asked) == 4096
    blocks = far.scan(3, 0, 2000, block_rows=10)
    bucket.proxy.reset()
    next(blocks)
    assert len(shard_requests(bucket)) <= 1, "who reads little waits for little"


@pytest.mark.slow
def test_rows_not_written_are_missing(bucket: Bucket, tmp_path: Path) -> None:
    made = example()
    made.fill(made.create(tmp_path / "x.zarr"), [0, 2])
    url = bucket.upload(tmp_path / "x.zarr", KEY)
    with pytest.warns(UnfinishedStoreWarning, match=f"^{url} is not finished: 256 of 700 rows"):
        far = open_store(url)
    with pytest.raises(MissingRowsError):
        far.vectors([300], layers=0)
    with pytest.raises(MissingRowsError):
        list(far.scan(0))
    assert np.isnan(far.vectors([300], layers=0, missing="nan")).all()
    assert np.array_equal(far.vectors([699, 0], layers=5), made.values[2][[699, 0]])
    assert sum(len(block) for _, block in far.scan(0, missing="skip")) == 444
    made.fill(tmp_path / "x.zarr", [1])
    bucket.upload(tmp_path / "x.zarr", KEY)
    far.source.refresh()
    assert np.array_equal(far.vectors([300], layers=0), made.values[0][[300]])


@pytest.mark.slow
def test_what_was_damaged_is_never_read_as_good(bucket: Bucket, tmp_path: Path) -> None:
    upload(bucket, example(), tmp_path)
    url = f"{bucket.url}/{KEY}"
    column = bytearray(bucket.get(f"{KEY}/occurrences/type/c/0"))
    column[5] ^= 1
    bucket.put(f"{KEY}/occurrences/type/c/0", bytes(column))
    with pytest.raises(StoreDamagedError, match=r"occurrences/type/c/0 was changed, its checksum differs"):
        _ = open_store(url).index
    bucket.delete(f"{KEY}/occurrences/type/c/0")
    with pytest.raises(StoreDamagedError, match="does not exist"):
        _ = open_store(url).index
    shard = bucket.get(f"{KEY}/hidden_states/c/0/0/0")
    bucket.put(f"{KEY}/hidden_states/c/0/0/0", shard[:-1] + bytes([shard[-1] ^ 1]))
    with pytest.raises(StoreDamagedError, match=r"size or index of .* was changed"):
        open_store(url).vectors([1], layers=0)
    bucket.put(f"{KEY}/hidden_states/c/0/0/0", shard[100:])
    with pytest.raises(StoreDamagedError, match=r"size or index of .* was changed"):
        open_store(url).vectors([1], layers=0)
    bucket.delete(f"{KEY}/hidden_states/c/0/0/0")
    with pytest.raises(StoreDamagedError, match="of partition 0 is missing"):
        open_store(url).vectors([1], layers=0)
    root = bucket.get(f"{KEY}/zarr.json")
    bucket.put(f"{KEY}/zarr.json", root.replace(b"tiny", b"tidy"))
    with pytest.raises(StoreDamagedError, match=r"the metadata of .* was changed"):
        open_store(url)


@pytest.mark.parametrize("remote", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_a_gather_may_ask_for_the_bits_of_bfloat16(
    request: pytest.FixtureRequest, tmp_path: Path, remote: bool
) -> None:
    near = example(dtype="bfloat16").make(tmp_path / "x.zarr")
    store = open_store(request.getfixturevalue("bucket").upload(tmp_path / "x.zarr", KEY)) if remote else near
    rows = np.random.default_rng(2).integers(0, near.n_rows, 300)
    bits = np.empty((len(near.layers), len(rows), near.hidden_size), np.uint16)
    assert store.vectors(rows, out=bits) is bits
    assert np.array_equal(float32_of_bfloat16(bits), near.vectors(rows))
    with pytest.raises(InvalidValueError, match="out must be a C-contiguous float32 array"):
        store.vectors(rows, out=bits.view(np.float16))


def test_rows_not_written_are_the_bits_of_nan(tmp_path: Path) -> None:
    made = example(dtype="bfloat16")
    made.fill(made.create(tmp_path / "x.zarr"), [1])
    start, stop = made.metadata.layout.span(1)
    with pytest.warns(UnfinishedStoreWarning):
        store = open_store(tmp_path / "x.zarr")
    rows = np.array([stop - 1, 0, start, 1])
    bits = np.empty((len(store.layers), 4, store.hidden_size), np.uint16)
    store.vectors(rows, out=bits, missing="nan")
    assert np.array_equal(bits[:, [0, 2]], made.arrays["hidden_states"][:, [stop - 1, start]])
    assert np.isnan(float32_of_bfloat16(bits[:, [1, 3]])).all()


@pytest.fixture
def url(bucket: Bucket, tmp_path: Path) -> str:
    example(dtype="int8").make(tmp_path / "x.zarr")
    return bucket.upload(tmp_path / "x.zarr", KEY)


def test_a_whole_store_is_whole(bucket: Bucket, url: str, tmp_path: Path) -> None:
    reported: list[tuple[int, int]] = []
    with es.config(progress=lambda done, total: reported.append((done, total))):
        report = verify(url)
    local = verify(tmp_path / "x.zarr")
    assert (report.faults, report.n_partitions, report.missing) == ((), 3, ())
    assert report.checked_nbytes == local.checked_nbytes == reported[-1][0] == reported[-1][1]
    assert str(report.path) == url
    bucket.put(f"{KEY}/hidden_states/.index/one/index.json", b"{}")
    shard = bucket.get(f"{KEY}/hidden_states/c/0/1/0")
    bucket.put(f"{KEY}/hidden_states/c/0/1/0", bytes([shard[0] ^ 1]) + shard[1:])
    faults = verify(url).faults
    assert [(fault.part, fault.partition) for fault in faults] == [("hidden_states/c/0/1/0", 1)]


def test_a_full_folder_for_temporary_files_is_no_damage(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(files, "IN_MEMORY_NBYTES", 0)
    monkeypatch.setattr(os, "posix_fallocate", full)
    with pytest.raises(StorageError, match=r"does not fit into .*: No space left on device; make space"):
        verify(url)


@pytest.mark.slow
def test_a_server_that_fails_says_nothing_of_the_store(bucket: Bucket, url: str) -> None:
    with pytest.raises(StoreNotFoundError, match="there is no store at"):
        verify(f"{bucket.url}/none.zarr")
    bucket.proxy.break_next(Fault("hidden_states/c", 99, 403, "AccessDenied"))
    with pytest.raises(StorageError, match="permission denied"):
        verify(url)
    bucket.proxy.reset()
    bucket.proxy.break_next(Fault("hidden_states/c", 2, cut=0.3))
    assert verify(url).ok


@pytest.mark.slow
def test_a_store_is_read_and_verified_from_a_web_server(tmp_path: Path) -> None:
    pytest.importorskip("obstore")
    made = example()
    local = made.make(tmp_path / "x.zarr")
    with web_host(tmp_path) as host:
        far = open_store(f"{host.url}/x.zarr")
        rows = np.random.default_rng(0).integers(0, 700, 60)
        assert far.finished
        assert np.array_equal(far.vectors(rows), local.vectors(rows))
        assert far.select().table().equals(local.select().table())
        assert verify(f"{host.url}/x.zarr").ok
        shard = tmp_path / "x.zarr/hidden_states/c/0/1/0"
        shard.write_bytes(b"\1" + shard.read_bytes()[1:])
        assert [fault.partition for fault in verify(f"{host.url}/x.zarr").faults] == [1]
        shard.unlink()
        assert [fault.what for fault in verify(f"{host.url}/x.zarr").faults] == ["is missing"]
        with pytest.raises(StoreNotFoundError, match="there is no store at"):
            open_store(f"{host.url}/y.zarr")


def test_a_store_on_the_hub_is_read_by_ranges_of_signed_urls(hub: WebHost) -> None:
    (hub.folder / "user/name").mkdir(parents=True)
    make_store(hub.folder / "user/name/x.zarr")
    local = es.open(hub.folder / "user/name/x.zarr")
    store = es.open(f"{hub.url}/datasets/user/name/resolve/main/x.zarr")
    rows = np.arange(0, local.n_rows, 3)
    for layer in local.layers:
        np.testing.assert_array_equal(store.vectors(rows, layers=layer), local.vectors(rows, layers=layer))
    assert list(store.index.words) == list(local.index.words)
    assert any(each.startswith("bytes=") for each in hub.ranges)
    assert not hub.signed
