"""Shards cached in a folder: downloaded once, checked, never stale, never more than allowed."""

from __future__ import annotations

import errno
import os
import pickle
import re
from pathlib import Path

import numpy as np
import pytest

from embstore.errors import StorageError, StoreDamagedError
from embstore.store import open_store
from embstore.store.storage.cache import CacheFolder
from tests.object_server import Bucket, Fault
from tests.store.example import example

KEY = "x.zarr"


def row_requests(bucket: Bucket) -> list[str]:
    return [request.key for request in bucket.proxy.requests if re.search(r"/(hidden_states|scale)/c/", request.key)]


@pytest.mark.parametrize("dtype", ["int8", pytest.param("float16", marks=pytest.mark.slow)])
def test_cached_shards_read_as_the_disk_and_are_fetched_once(bucket: Bucket, tmp_path: Path, dtype: str) -> None:
    near = example(dtype=dtype).make(tmp_path / "x.zarr")
    url = bucket.upload(tmp_path / "x.zarr", KEY)
    rows = np.random.default_rng(0).integers(0, 700, 300)
    for visit in range(2):
        bucket.proxy.reset()
        far = open_store(url, cache=tmp_path / "cache")
        assert np.array_equal(far.vectors(rows), near.vectors(rows))
        assert far.table().equals(near.table())
        assert [len(block) for _, block in far.scan(3)] == [700]
        shards = 3 * (2 if dtype == "int8" else 1)
        assert len(row_requests(bucket)) == (0 if visit else shards)
        chunks = [request.key for request in bucket.proxy.requests if "/c/" in request.key]
        assert not visit or chunks == [f"{KEY}/commits/c/0/0"]
    again = pickle.loads(pickle.dumps(far))
    bucket.proxy.reset()
    assert np.array_equal(again.vectors(rows, layers=0)[0], near.vectors(rows, layers=0)[0])
    assert not row_requests(bucket)


@pytest.mark.slow
def test_a_store_that_was_replaced_is_never_served_stale(bucket: Bucket, tmp_path: Path) -> None:
    before, after = example(), example(seed=0)
    after.arrays["hidden_states"] = after.arrays["hidden_states"] + np.float16(1)
    before.make(tmp_path / "before.zarr")
    after.make(tmp_path / "after.zarr")
    url = bucket.upload(tmp_path / "before.zarr", KEY)
    far = open_store(url, cache=tmp_path / "cache")
    assert np.array_equal(far.vectors([1], layers=0)[0], before.arrays["hidden_states"][0][[1]])
    bucket.upload(tmp_path / "after.zarr", KEY)
    for store in (far, open_store(url, cache=tmp_path / "cache")):
        store.source.refresh()
        assert np.array_equal(store.vectors([1], layers=0)[0], after.arrays["hidden_states"][0][[1]])


@pytest.mark.slow
def test_changed_bytes_are_refused_and_not_cached(bucket: Bucket, tmp_path: Path) -> None:
    example().make(tmp_path / "x.zarr")
    url = bucket.upload(tmp_path / "x.zarr", KEY)
    shard = bytearray(bucket.get(f"{KEY}/hidden_states/c/0/1/0"))
    good = bytes(shard)
    shard[100] ^= 1
    bucket.put(f"{KEY}/hidden_states/c/0/1/0", bytes(shard))
    far = open_store(url, cache=tmp_path / "cache")
    with pytest.raises(StoreDamagedError, match=r"partition 1 of .* was changed"):
        far.vectors([300], layers=0)[0]
    assert not any((tmp_path / "cache").iterdir())
    far.vectors([10], layers=0)[0]
    bucket.delete(f"{KEY}/hidden_states/c/0/1/0")
    with pytest.raises(StoreDamagedError, match="does not exist"):
        far.vectors([300], layers=0)[0]
    bucket.put(f"{KEY}/hidden_states/c/0/1/0", good)
    bucket.proxy.break_next(Fault("hidden_states", 1, cut=0.5))
    far.vectors([300], layers=0)[0]


def test_a_download_that_ends_early_leaves_nothing(bucket: Bucket, tmp_path: Path) -> None:
    kept = CacheFolder(tmp_path / "cache", 10**6)

    def write(descriptors: list[int]) -> None:
        os.write(descriptors[0], b"half")
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        kept.add([("one", 8), ("two", 8)], write)
    assert not any((tmp_path / "cache").iterdir())


def test_the_folder_is_bounded_and_what_was_used_last_stays(tmp_path: Path) -> None:
    kept = CacheFolder(tmp_path, 250)
    for number, name in enumerate("abc"):
        kept.add([(name, 100)], lambda descriptors: os.write(descriptors[0], bytes(100)))
        if kept.find(name, 100) is not None and name != "c":
            os.utime(kept.find(name, 100) or "", (number, number))
        if name == "b":
            assert kept.find("a", 100) is not None  # used again, so b is the one that goes
    (tmp_path / "mine.txt").write_text("mine")
    assert [kept.find(name, 100) is not None for name in "abc"] == [True, False, True]
    assert kept.find("a", 99) is None
    kept.add([("large", 10**4)], lambda descriptors: os.write(descriptors[0], bytes(10**4)))
    assert sorted(path.name[-7:] for path in tmp_path.iterdir()) == [".cached", "ine.txt"]


def test_a_folder_that_may_only_be_read_gives_what_it_has(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kept = CacheFolder(tmp_path, 250)
    kept.add([("a", 100)], lambda descriptors: os.write(descriptors[0], bytes(100)))

    def refuse(*_: object, **__: object) -> None:
        raise OSError(errno.EROFS, "Read-only file system")

    for name in ("utime", "mkdir"):
        monkeypatch.setattr(os, name, refuse)
    assert kept.find("a", 100) is not None
    with pytest.raises(StorageError, match=r"cannot write /.* \(EMBSTORE_CACHE chooses another folder\): Read-only"):
        CacheFolder(tmp_path / "new", 250).add([("b", 1)], lambda descriptors: None)
