"""Stores written into an S3 on loopback: the same bytes as on a disk, whatever happens on the way."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from embstore.errors import EmbstoreError, StorageError, StoreNotFoundError
from embstore.store import StoreWriter, create_store
from embstore.store.storage.location import ObjectPath
from embstore.store.storage.objects import Objects
from tests.object_server import SECRET, Bucket, Fault
from tests.store.example import Example, all_files, example

pytest.importorskip("obstore", reason="no obstore: pip install 'embstore[objects]'")


@pytest.fixture(autouse=True)
def no_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("embstore.store.zarr.object_shards._FIRST_WAIT", 0.0)


def small(dtype: str = "float16", *, seed: int = 0) -> Example:
    return example(rows=300, layers=(0, 2), hidden_size=4, dtype=dtype, labels=False, seed=seed)


def fill(made: Example, url: str) -> None:
    with StoreWriter(url) as writer:
        for partition in writer.missing():
            writer.write(partition, made.partition(partition))
        writer.finish()


def upload(made: Example, url: str) -> None:
    create_store(url, metadata=made.metadata, index=made.index, center=made.center)
    fill(made, url)


def files(bucket: Bucket) -> dict[str, bytes]:
    return {key.removeprefix("some/x.zarr/"): bucket.get(key) for key in sorted(bucket.keys())}


@pytest.mark.parametrize(("dtype", "part"), [("float16", 2**24), pytest.param("int8", 1000, marks=pytest.mark.slow)])
def test_every_object_is_a_file_of_the_local_store(
    bucket: Bucket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, dtype: str, part: int
) -> None:
    monkeypatch.setattr("embstore.store.zarr.object_shards.PART_NBYTES", part)
    made = small(dtype)
    upload(made, f"{bucket.url}/some/x.zarr/")
    assert files(bucket) == all_files(made.make(tmp_path / "x.zarr").path)


@pytest.mark.slow
@pytest.mark.parametrize(
    "fault",
    [
        Fault("PUT", times=3, status=503),
        Fault("PUT .*hidden_states/c/", lose=True),
        Fault("PUT .*commits/c/0/0", lose=True),
        Fault("PUT .*commits/zarr.json", times=2, lose=True),
        Fault("DELETE|POST", lose=True),
        Fault("GET .*zarr.json", times=2, cut=0.5),
        Fault(r"GET .*commits/c\.0\.0", times=2, cut=0.5),
        Fault("GET .*commits/c/0/0", times=2, cut=0.5),
    ],
    ids=lambda fault: f"{fault.match}-{'lost' if fault.lose else fault.status or 'cut'}",
)
def test_a_failing_server_is_asked_again(bucket: Bucket, tmp_path: Path, fault: Fault) -> None:
    made = small()
    bucket.proxy.break_next(fault)
    upload(made, f"{bucket.url}/some/x.zarr")
    assert fault.met == fault.times
    assert files(bucket) == all_files(made.make(tmp_path / "x.zarr").path)


@pytest.mark.slow
@pytest.mark.parametrize(
    "fault",
    [
        Fault("POST .*tmp.*uploads", status=503),
        Fault("PUT .*tmp.*partNumber", times=2, status=503),
        Fault("PUT .*tmp.*partNumber", lose=True),
        Fault("POST .*hidden_states.*uploadId", lose=True),
    ],
    ids=["begin", "part", "part-lost", "complete-lost"],
)
def test_an_upload_in_parts_is_tried_again(
    bucket: Bucket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fault: Fault
) -> None:
    monkeypatch.setattr("embstore.store.zarr.object_shards.PART_NBYTES", 1000)
    made = small()
    bucket.proxy.break_next(fault)
    upload(made, f"{bucket.url}/some/x.zarr")
    assert fault.met == fault.times
    assert files(bucket) == all_files(made.make(tmp_path / "x.zarr").path)


@pytest.mark.slow
@pytest.mark.parametrize("part", [2**24, 1000])
def test_a_server_that_gives_up_leaves_what_is_gone_on_with(
    bucket: Bucket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, part: int
) -> None:
    monkeypatch.setattr("embstore.store.zarr.object_shards.PART_NBYTES", part)
    monkeypatch.setenv("EMBSTORE_RETRIES", "0")
    made = small()
    url = f"{bucket.url}/some/x.zarr"
    create_store(url, metadata=made.metadata, index=made.index)
    bucket.proxy.break_next(Fault("(PUT|POST) .*hidden_states/c/0/1/", times=50, status=503))
    with pytest.raises(StorageError, match="the server answers 503 Service Unavailable SlowDown") as raised:
        fill(made, url)
    assert "\n" not in str(raised.value)
    shards = [name for name in files(bucket) if name.startswith("hidden_states/c/")]
    assert shards == ["hidden_states/c/0/0/0"]
    bucket.proxy.reset()
    fill(made, url)
    assert files(bucket) == all_files(made.make(tmp_path / "x.zarr").path)


@pytest.mark.parametrize("part", [pytest.param(2**24, marks=pytest.mark.slow), 1000])
def test_the_server_decides_between_two_writers(
    bucket: Bucket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, part: int
) -> None:
    """The slower one's shard is sent whole after the other's stands and is committed, as one request or as a copy."""
    monkeypatch.setattr("embstore.store.zarr.object_shards.PART_NBYTES", part)
    slow, quick = small(), small()
    quick.arrays["hidden_states"] *= np.float16(1.01)
    url = f"{bucket.url}/some/x.zarr"
    create_store(url, metadata=slow.metadata, index=slow.index)
    sent: list[str] = []
    name = "put" if part > 1000 else "copy_new"
    send = getattr(Objects, name)

    def late(self: Objects, *arguments: Any, **options: Any) -> None:
        target = arguments[0 if name == "put" else 1]
        if target == "hidden_states/c/0/0/0" and not sent:
            sent.append(target)
            fill(quick, url)
        send(self, *arguments, **options)

    monkeypatch.setattr(Objects, name, late)
    fill(slow, url)
    assert sent
    assert files(bucket) == all_files(quick.make(tmp_path / "x.zarr").path)


def test_what_the_server_refuses_is_one_line(bucket: Bucket) -> None:
    made = small()
    region = "<Region>eu-west-1</Region>"
    for fault, url, message, kind in [
        (None, "s3://no-such-bucket/x.zarr", "there is no bucket 'no-such-bucket'", StoreNotFoundError),
        (Fault("PUT", 9, status=403, code="AccessDenied"), bucket.url + "/x.zarr", "no right to do so", StorageError),
        (
            Fault("PUT", 9, status=400, code="AuthorizationHeaderMalformed", detail=region),
            bucket.url + "/x.zarr",
            r"in another region \(eu-west-1\) than AWS_REGION says \(us-east-1\)",
            StorageError,
        ),
    ]:
        if fault is not None:
            bucket.proxy.break_next(fault)
        with pytest.raises(EmbstoreError, match=message) as raised:
            create_store(url, metadata=made.metadata, index=made.index)
        assert isinstance(raised.value, kind)
        assert "\n" not in str(raised.value)
        assert SECRET not in str(raised.value)
        bucket.proxy.reset()
    assert bucket.keys() == []
    with pytest.raises(StoreNotFoundError, match=r"there is no store at s3://.*/x\.zarr: embstore extract makes one"):
        StoreWriter(f"{bucket.url}/x.zarr")


def test_an_existing_store_is_not_touched(bucket: Bucket) -> None:
    made = small()
    upload(made, f"{bucket.url}/some/x.zarr")
    before = files(bucket)
    with pytest.raises(EmbstoreError, match=r"x\.zarr exists already"):
        create_store(f"{bucket.url}/some/x.zarr", metadata=small(seed=1).metadata, index=small(seed=1).index)
    with StoreWriter(ObjectPath(f"{bucket.url}/some/x.zarr")) as writer:
        assert writer.missing() == []
        writer.write(0, small(seed=1).partition(0))
        writer.finish()
    assert files(bucket) == before
