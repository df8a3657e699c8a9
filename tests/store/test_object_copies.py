"""Copies of stores from a disk to a bucket and back are the same bytes, whole or refused."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from embstore.errors import InvalidValueError, StoreDamagedError
from embstore.store import create_store, export, open_store
from tests.store.example import all_files, example
from tests.store.memory_bucket import URL, MemoryBucket

pytest.importorskip("obstore", reason="no obstore: pip install 'embstore[objects]'")


@pytest.mark.parametrize("dtype", ["float16", pytest.param("int8", marks=pytest.mark.slow)])
def test_to_a_bucket_and_back(memory: MemoryBucket, tmp_path: Path, dtype: str) -> None:
    local = example(dtype=dtype).make(tmp_path / "x.zarr")
    remote = export(local, URL)
    assert str(remote.path) == URL
    assert remote.finished
    assert memory.files() == all_files(local.path)
    export(remote, tmp_path / "back.zarr")
    assert all_files(tmp_path / "back.zarr") == all_files(local.path)
    flat = export(URL, tmp_path / "back.h5")
    assert np.array_equal(flat.vectors([699, 0], layers=3)[0], local.vectors([699, 0], layers=3)[0])
    with pytest.raises(InvalidValueError, match=r"s3://bucket/x\.zarr exists already"):
        export(local, URL)


def test_a_part_of_a_store_in_another_dtype(memory: MemoryBucket, tmp_path: Path) -> None:
    local = example().make(tmp_path / "x.zarr")
    export(local, URL)
    chosen = {"layers": [0, 5], "rows": [3, 4, 600]}
    export(local.select(**chosen), tmp_path / "near.zarr", dtype="float32")
    export(open_store(URL).select(**chosen), "s3://bucket/far.zarr", dtype="float32")
    far = {key.removeprefix("far.zarr/"): data for key, data in memory.all_objects().items() if key.startswith("far")}
    assert far == all_files(tmp_path / "near.zarr")


def test_what_was_changed_is_not_copied(memory: MemoryBucket, tmp_path: Path) -> None:
    local = example().make(tmp_path / "x.zarr")
    export(local, URL)
    for name in ("hidden_states/c/0/1/0", "occurrences/position/c/0"):
        whole = memory.files()[name]
        memory.storage.put(name, [whole[:9] + bytes([whole[9] ^ 1]) + whole[10:]])
        with pytest.raises(StoreDamagedError):
            export(URL, tmp_path / f"{name.replace('/', '_')}.zarr")
        memory.storage.put(name, [whole])


@pytest.mark.parametrize("commit_seconds", [0.0, 5.0])
def test_what_a_failed_copy_began_is_removed(
    memory: MemoryBucket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, commit_seconds: float
) -> None:
    """Also where the records of its first partitions are still to be written."""
    monkeypatch.setattr("embstore.store.layout.SHARD_NBYTES", 1)  # several partitions
    monkeypatch.setattr("embstore.store.zarr.writer.COMMIT_SECONDS", commit_seconds)
    made = example(dtype="float32")
    made.arrays["hidden_states"][1, 600, 2] = 1e6  # in the last partition
    local = made.make(tmp_path / "x.zarr")
    with pytest.raises(ArithmeticError, match="beyond float16"):
        export(local, URL, dtype="float16")
    assert memory.files() == {}


def test_a_store_that_is_another_ones_stays(memory: MemoryBucket, tmp_path: Path) -> None:
    other = example(seed=1)
    create_store(URL, metadata=other.metadata, index=other.index)
    before = memory.files()
    with pytest.raises(InvalidValueError, match="exists already"):
        export(example().make(tmp_path / "x.zarr"), URL)
    assert memory.files() == before
