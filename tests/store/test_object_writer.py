"""Stores written, copied and repaired in buckets: the same bytes as on a disk, whatever fails on the way."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from embstore.errors import InvalidValueError, StoreDamagedError, StoreMismatchError, StoreNotFoundError
from embstore.store import StoreWriter, create_store, export, open_store, verify
from embstore.store.check.repair import repair_layout
from embstore.store.storage.location import ObjectPath
from embstore.store.writer import PartitionWriter
from tests.object_server import Bucket, Fault
from tests.store.example import Example, all_files, example
from tests.store.memory_bucket import URL, MemoryBucket

pytest.importorskip("obstore", reason="no obstore: pip install 'embstore[objects]'")


@pytest.fixture(autouse=True)
def no_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("embstore.store.storage.objects._FIRST_WAIT", 0.0)


def small(dtype: str = "float16", *, seed: int = 0, labels: bool = False) -> Example:
    return example(rows=300, layers=(0, 2), hidden_size=4, dtype=dtype, labels=labels, seed=seed)


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
    assert np.array_equal(flat.vectors([699, 0], layers=3), local.vectors([699, 0], layers=3))
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


pytest.importorskip("obstore", reason="no obstore: pip install 'embstore[objects]'")

PLACE = ObjectPath(URL)


def repair(made: Example) -> list[int]:
    return repair_layout(PLACE, metadata=made.metadata, index=made.index, center=made.center)


def cut(data: bytes) -> bytes:
    return data[: len(data) // 2]


def flipped(data: bytes) -> bytes:
    return data[:-1] + bytes([data[-1] ^ 1])


@pytest.mark.parametrize("damage", [cut, flipped, None], ids=["cut", "flipped", "missing"])
@pytest.mark.parametrize("stride", [9, pytest.param(1, marks=pytest.mark.slow)])
@pytest.mark.quick(1)
def test_any_damage_is_repaired(
    memory: MemoryBucket, tmp_path: Path, damage: Callable[[bytes], bytes] | None, stride: int
) -> None:
    made = small("int8", labels=True)
    expected = all_files(made.make(tmp_path / "x.zarr").path)
    create_store(PLACE, metadata=made.metadata, index=made.index, center=made.center)
    made.fill(PLACE)
    assert memory.files() == expected
    for name in {*sorted(expected)[::stride], "hidden_states/c/0/1/0", "commits/c/0/0"}:
        if damage is not None:
            memory.storage.put(name, [damage(expected[name])])
        elif name != "zarr.json":
            memory.storage.delete(name)
        missing = repair(made)
        vectors = {f"{array}/c/0/{k}": k for k in (0, 1) for array in ("hidden_states", "scale")}
        of_shard = [k for prefix, k in vectors.items() if name.startswith(prefix)]
        every = name.startswith(("center/c", "commits/c"))
        one = name.startswith("commits/c") and damage is flipped  # the record of the last partition
        assert missing == ([1] if one else [0, 1] if every else of_shard), name
        made.fill(PLACE)
        assert memory.files() == expected, name


def test_what_belongs_to_no_store_is_removed(memory: MemoryBucket, tmp_path: Path) -> None:
    made = small(labels=True)
    create_store(PLACE, metadata=made.metadata, index=made.index)
    made.fill(PLACE)
    memory.storage.put("hidden_states/c/0/9/0", [b"junk"])
    memory.storage.put("hidden_states/.index/x", [b"an index"])
    assert repair(made) == []
    files = memory.files()
    assert files.pop("hidden_states/.index/x") == b"an index"
    assert files == all_files(made.make(tmp_path / "x.zarr").path)


def test_another_plan_repairs_nothing(memory: MemoryBucket) -> None:
    made, other = small("int8"), small("int8", seed=1)
    with pytest.raises(StoreNotFoundError, match="there is no store"):
        repair(made)
    create_store(PLACE, metadata=made.metadata, index=made.index, center=made.center)
    made.fill(PLACE)
    before = memory.files()
    with pytest.raises(StoreMismatchError, match="was made with another"):
        repair(other)
    memory.storage.put("zarr.json", [b"junk"])
    with pytest.raises(StoreDamagedError, match="nothing else in it shows that this plan made it"):
        repair(other)
    assert memory.files() == {**before, "zarr.json": b"junk"}
    with pytest.raises(InvalidValueError, match="are read-only"):
        repair_layout("https://host/x.zarr", metadata=made.metadata, index=made.index)
