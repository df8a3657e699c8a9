"""Stores written to an S3 server on loopback: the same bytes as on a disk, whatever fails on the way."""

from __future__ import annotations

import warnings
from pathlib import Path

import pytest

from embstore.errors import InvalidValueError
from embstore.store import StoreWriter, create_store, open_store, verify
from embstore.store.writer import PartitionWriter
from tests.object_server import Bucket, Fault
from tests.store.example import Example, all_files, example
from tests.store.memory_bucket import URL, MemoryBucket

pytest.importorskip("obstore", reason="no obstore: pip install 'embstore[objects]'")


@pytest.fixture(autouse=True)
def no_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("embstore.store.storage.objects._FIRST_WAIT", 0.0)


def small(dtype: str = "float16", *, seed: int = 0) -> Example:
    return example(rows=300, layers=(0, 2), hidden_size=4, dtype=dtype, labels=False, seed=seed)


def upload(made: Example, url: str) -> None:
    made.create(url)
    made.fill(url)


def files(bucket: Bucket) -> dict[str, bytes]:
    return {key.removeprefix("some/x.zarr/"): bucket.get(key) for key in sorted(bucket.keys())}


@pytest.mark.parametrize(("dtype", "part"), [("float16", 2**24), pytest.param("int8", 1000, marks=pytest.mark.slow)])
def test_every_object_is_a_file_of_the_local_store(
    bucket: Bucket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, dtype: str, part: int
) -> None:
    monkeypatch.setattr("embstore.store.storage.objects.LARGE_NBYTES", part)
    made = small(dtype)
    upload(made, f"{bucket.url}/some/x.zarr/")
    assert files(bucket) == all_files(made.make(tmp_path / "x.zarr").path)


FAULTS = [
    Fault("PUT", times=3, status=503),
    Fault("PUT .*hidden_states/c/", lose=True),
    Fault("PUT .*commits/c/0/0", lose=True),
    Fault("PUT .*commits/zarr.json", times=2, lose=True),
    Fault("GET .*zarr.json", times=2, cut=0.5),
    Fault("GET .*commits/c/0/0", times=2, cut=0.5),
]
FAULTS_OF_PARTS = [  # of uploads that are larger than what is sent at once
    Fault("POST .*tmp.*uploads", status=503),
    Fault("PUT .*tmp.*partNumber", times=2, status=503),
    Fault("PUT .*tmp.*partNumber", lose=True),
    Fault("POST .*hidden_states.*uploadId", lose=True),
]


@pytest.mark.slow
@pytest.mark.parametrize("fault", [*FAULTS, *FAULTS_OF_PARTS], ids=str)
def test_transient_faults_are_retried(
    bucket: Bucket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fault: Fault
) -> None:
    if fault in FAULTS_OF_PARTS:
        monkeypatch.setattr("embstore.store.storage.objects.LARGE_NBYTES", 1000)
    made = small()
    bucket.proxy.break_next(fault)
    upload(made, f"{bucket.url}/some/x.zarr")
    assert fault.met == fault.times
    assert files(bucket) == all_files(made.make(tmp_path / "x.zarr").path)


def test_requests_of_a_partition(bucket: Bucket) -> None:
    """One request creates a shard; the commits are written together at the end."""
    made = small()
    url = f"{bucket.url}/some/x.zarr"
    create_store(url, metadata=made.metadata, index=made.index)
    with StoreWriter(url) as writer:
        bucket.proxy.reset()
        for partition in writer.missing():
            writer.write(partition, made.partition(partition))
        assert [request.key.removeprefix("some/x.zarr/") for request in bucket.proxy.requests] == [
            "hidden_states/c/0/0/0",
            "hidden_states/c/0/1/0",
        ]
        bucket.proxy.reset()
        writer.finish()
        assert [request.key.removeprefix("some/x.zarr/") for request in bucket.proxy.requests if request.key] == [
            "commits/c/0/0"
        ]


class Killed(BaseException):
    """Ends a writer at once, as a signal does."""


def kill_before(memory: MemoryBucket, name: str) -> None:
    """Kill the next writer before it writes the object `name`."""

    def step(when: str, kind: str, key: str) -> None:
        if when == "begin" and kind in ("put", "put_new") and key == name:
            raise Killed

    memory.step = step


@pytest.mark.parametrize("dtype", ["float16", "int8"])
def test_a_shard_that_the_commits_do_not_name_is_kept_when_it_is_written_again(
    memory: MemoryBucket, tmp_path: Path, dtype: str
) -> None:
    made = small(dtype)
    create_store(URL, metadata=made.metadata, index=made.index, center=made.center)
    kill_before(memory, "commits/c/0/0")
    with pytest.raises(Killed):
        made.fill(URL)
    memory.step = lambda when, kind, key: None
    assert memory.files()["commits/c/0/0"] == bytes([255]) * 32
    first, second = "hidden_states/c/0/0/0", "hidden_states/c/0/1/0"
    memory.storage.put(second, [memory.files()[second][:-1]])  # its index is damaged
    with StoreWriter(URL) as writer:
        assert writer.missing() == [0, 1]
        other = {name: array[:, ::-1] for name, array in made.partition(0).items()}
        assert PartitionWriter(URL).write(0, other).crc32c == PartitionWriter(URL).write(0, made.partition(0)).crc32c
        before = memory.files()[first]
        writer.write(0, other)
        writer.write(1, made.partition(1))
        writer.finish()
    assert memory.files()[first] == before
    assert memory.files() == all_files(made.make(tmp_path / "x.zarr").path)


def test_commits_are_written_every_few_seconds(memory: MemoryBucket, monkeypatch: pytest.MonkeyPatch) -> None:
    made = small()
    create_store(URL, metadata=made.metadata, index=made.index)
    monkeypatch.setattr("embstore.store.zarr.writer.COMMIT_SECONDS", 0.0)
    with StoreWriter(URL) as writer:
        for partition, committed in ((1, [False, True]), (0, [True, True])):
            writer.write(partition, made.partition(partition))
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                assert open_store(URL).source.committed.tolist() == committed


def test_workers_write_and_one_process_commits(memory: MemoryBucket, tmp_path: Path) -> None:
    made = small("int8")
    for path in (URL, tmp_path / "x.zarr", tmp_path / "x.h5"):
        create_store(path, metadata=made.metadata, index=made.index, center=made.center)
        with StoreWriter(path) as writer:
            records = [PartitionWriter(path).write(partition, made.partition(partition)) for partition in (0, 1)]
            assert writer.missing() == [0, 1]
            with pytest.raises(InvalidValueError, match="invalid record of partition 1: it has 256 rows, expected 44"):
                writer.commit(1, records[0])
            for partition in (1, 0):
                writer.commit(partition, records[partition])
            writer.finish()
        assert verify(path).ok
        assert open_store(path).finished
    assert memory.files() == all_files(tmp_path / "x.zarr") == all_files(made.make(tmp_path / "y.zarr").path)
    assert all_files(tmp_path / "x.h5") == all_files(made.make(tmp_path / "y.h5").path)
