"""Verifying and exporting a store in a bucket, and reading one from a plain web server."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import numpy as np
import pytest

import embstore as es
from embstore.errors import StorageError, StoreNotFoundError
from embstore.store import open_store, verify
from embstore.store.storage import files
from tests.object_server import Bucket, Fault
from tests.store.example import example
from tests.web_host import web_host

KEY = "x.zarr"


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
